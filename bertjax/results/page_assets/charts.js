"use strict";
// The charts: what plotly.js is asked to draw. Nothing here knows the page around them.

const Charts = (() => {
  const LINES = 8; // shades of the lines between tokens
  const FAINT = 0.22; // what is left of the colour of a change that is not significant, as in the printed map
  const FAINTEST = 0.02; // weights below are not drawn as lines, unless there are so many tokens that most are

  // Plotly reads some HTML in its texts; what comes from data must stay as it is.
  const escape = text => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const signed = (value, digits = 2) =>
    value === null ? "undefined" : (value < 0 ? "−" : value > 0 ? "+" : "") + Math.abs(value).toFixed(digits);

  function layout(more) {
    const ink = colour("--ink"), grid = colour("--pale");
    const axis = { gridcolor: grid, zerolinecolor: ink, linecolor: grid, tickcolor: grid, automargin: true };
    const base = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false,
      font: { color: ink, family: "system-ui, sans-serif", size: 13 },
      margin: { l: 50, r: 10, t: 10, b: 45 }, showlegend: false, hoverlabel: { align: "left" },
    };
    const merged = { ...base, ...more };
    for (const name of ["xaxis", "yaxis"]) merged[name] = { ...axis, ...(more[name] || {}) };
    return merged;
  }

  const config = { displaylogo: false, responsive: true, displayModeBar: false, scrollZoom: false };
  function draw(where, traces, more) {
    document.getElementById(where).style.height = `${more.height}px`; // else Plotly forgets it when the window changes
    return Plotly.react(where, traces, layout(more), config);
  }
  const fromZero = ({ effects, tested }) => effects && !tested; // never below 0: half of the colours
  const scale = measure => fromZero(measure) ? [[0, colour("--middle")], [1, colour("--high")]] : twoSided(measure);
  const twoSided = ({ sign }) => [[0, colour(sign < 0 ? "--high" : "--low")], [0.5, colour("--middle")], [1, colour(sign < 0 ? "--low" : "--high")]];

  // A measure says how changes are printed (unit, digits) and by its sign which are losses.
  const axisOf = measure => measure.change + (measure.unit ? ` in ${measure.unit}` : "");

  // The largest size of a change that colours tell apart: three times the 90th percentile, as in the printed map.
  function limit(values, measure) {
    const sizes = values.filter(value => value !== null).map(Math.abs).sort((a, b) => a - b);
    if (!sizes.length) return 1;
    const largest = sizes[sizes.length - 1], odd = 3 * sizes[Math.floor(0.9 * (sizes.length - 1))];
    return Math.max(odd > 0 ? Math.min(largest, odd) : largest, 5 * 10 ** -measure.digits);
  }

  // cells: {layer, head, change, text, sure}, pale where not sure; selected: {layer, head} or null. Gives how many lie beyond the scale.
  function map(where, cells, { layers, heads }, selected, measure) {
    const grid = () => Array.from({ length: layers }, () => Array(heads).fill(null));
    const z = grid(), pale = grid(), full = grid(), text = grid();
    for (const cell of cells) {
      z[cell.layer][cell.head] = cell.change;
      (cell.sure ? full : pale)[cell.layer][cell.head] = cell.change;
      text[cell.layer][cell.head] = cell.text;
    }
    const most = limit(cells.map(cell => cell.change), measure);
    const means = z.map(row => {
      const known = row.filter(value => value !== null);
      return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
    });
    const look = { type: "heatmap", colorscale: scale(measure), zmin: fromZero(measure) ? 0 : -most, zmax: most, xgap: 1, ygap: 1, hoverongaps: false, showscale: false, hovertemplate: "%{text}<extra></extra>" };
    const heat = { z: full, text, ...look }, noise = { z: pale, text, ...look, opacity: FAINT };
    const side = {
      z: means.map(value => [value]), x: [heads + 0.6], y: means.map((_, layer) => layer),
      text: means.map((value, layer) => [`mean of layer ${layer}: ${signed(value, measure.digits)}${value === null ? "" : ` ${measure.unit}`}`.trim()]), ...look, opacity: FAINT,
    };
    const key = { // the scale of colours, also where no cell has its full one
      type: "scatter", mode: "markers", x: [null], y: [null], hoverinfo: "skip",
      marker: { color: [0], colorscale: scale(measure), cmin: fromZero(measure) ? 0 : -most, cmax: most, showscale: true, colorbar: { title: { text: measure.unit }, thickness: 12, x: 1.01 } },
    };
    const dots = { type: "scatter", mode: "text", x: [], y: [], text: [], hoverinfo: "skip", textfont: { size: 13, color: colour("--ink") } };
    for (const cell of cells.filter(cell => cell.sure && measure.tested)) { dots.x.push(cell.head); dots.y.push(cell.layer); dots.text.push("●"); }
    const shapes = selected === null ? [] : [{
      type: "rect", x0: selected.head - 0.5, x1: selected.head + 0.5, y0: selected.layer - 0.5, y1: selected.layer + 0.5,
      line: { color: colour("--ink"), width: 3 },
    }];
    const ticks = Array.from({ length: heads }, (_, head) => head);
    draw(where, [heat, noise, side, dots, key], {
      height: 90 + 36 * layers, shapes,
      xaxis: { title: { text: "head" }, tickvals: [...ticks, heads + 0.6], ticktext: [...ticks.map(String), "mean"], showgrid: false, zeroline: false, range: [-0.6, heads + 1.2] },
      yaxis: { title: { text: "layer" }, autorange: "reversed", dtick: 1, showgrid: false, zeroline: false },
    });
    return cells.filter(cell => Math.abs(cell.change ?? 0) > most * 1.001).length;
  }

  const shade = measure => cell => colour(!cell.change ? "--grey" : measure.sign * cell.change < 0 ? "--low" : "--high");

  // cells as in ranking; a bar for each, in this order, with no more names below than fit.
  function columns(where, cells, selected, measure) {
    const bar = cell => cell.name === selected ? 3 : 1, least = limit([], measure), shaded = shade(measure); // of an axis on which nothing changes
    const trace = {
      type: "bar", x: cells.map((_, place) => place), y: cells.map(cell => cell.change), customdata: cells.map(cell => cell.place),
      text: cells.map(cell => cell.text), textposition: "none", hovertemplate: "%{text}<extra></extra>",
      marker: {
        color: cells.map(cell => cell.sure ? shaded(cell) : "rgba(0,0,0,0)"),
        line: { color: cells.map(cell => cell.name === selected ? colour("--ink") : shaded(cell)), width: cells.map(bar) },
      },
    };
    return draw(where, [trace], {
      height: 260, bargap: 0.25,
      xaxis: { ...named(where, cells), title: { text: cells.length ? cells[0].kind : "" } },
      yaxis: { title: { text: axisOf(measure) }, zeroline: true, range: cells.every(cell => !cell.change) ? [-least, least] : undefined },
    });
  }

  // The axis below: names of as many as fit.
  function named(where, bars) {
    const room = Math.max(5, Math.floor(document.getElementById(where).clientWidth / 26));
    const every = Math.max(1, Math.ceil(bars.length / room));
    const shown = bars.map((_, place) => place).filter(place => place % every === 0);
    const angle = Math.max(0, ...bars.map(bar => bar.name.length)) > 2 ? -90 : 0;
    return { tickvals: shown, ticktext: shown.map(place => escape(bars[place].name)), tickangle: angle, showgrid: false, zeroline: false, range: [-1, bars.length] };
  }

  // bars: {name, kind, change, low, high, sure, text}; one bar or dot for each, in this order.
  function ranking(where, bars, selected, measure) {
    const trace = {
      type: "scatter", mode: "markers", x: bars.map((_, place) => place), y: bars.map(bar => bar.change),
      customdata: bars.map(bar => bar.place),
      text: bars.map(bar => bar.text), hovertemplate: "%{text}<extra></extra>",
      error_y: {
        type: "data", symmetric: false, thickness: 1, width: 0, color: colour("--grey"),
        array: bars.map(bar => bar.high === null ? 0 : bar.high - bar.change),
        arrayminus: bars.map(bar => bar.low === null ? 0 : bar.change - bar.low),
      },
      marker: {
        color: bars.map(shade(measure)), symbol: bars.map(bar => bar.sure ? "circle" : "circle-open"),
        size: bars.map(bar => bar.name === selected ? 13 : 8), opacity: 1,
      },
    };
    return draw(where, [trace], {
      height: 320,
      xaxis: named(where, bars),
      yaxis: { title: { text: axisOf(measure) }, zeroline: true },
    });
  }

  // weights: rows of queries by keys.
  function matrix(where, tokens, weights, most) {
    const names = tokens.map(escape), places = tokens.map((_, place) => place);
    const text = weights.map((row, query) => row.map((weight, key) => `${names[query]} → ${names[key]}: ${weight.toFixed(2)}`));
    const axis = { showgrid: false, zeroline: false, tickfont: { size: 10 } };
    const room = Math.max(80, document.getElementById(where).clientWidth - 190) / 11; // names that fit side by side
    const across = places.filter(place => place % Math.ceil(tokens.length / room) === 0);
    return draw(where, [{
      type: "heatmap", z: weights, text, hovertemplate: "%{text}<extra></extra>", zmin: 0, zmax: most,
      colorscale: [[0, colour("--paper")], [1, colour("--mark")]], colorbar: { thickness: 10, title: { text: "weight" } },
    }], {
      height: Math.max(260, 120 + 13 * tokens.length),
      xaxis: { ...axis, tickvals: across, ticktext: across.map(place => names[place]), tickangle: -90, title: { text: "attended to" } },
      yaxis: { ...axis, tickvals: places, ticktext: names, autorange: "reversed", title: { text: "attending" } },
    });
  }

  // Two columns of tokens; lines of the same shade are one trace.
  function lines(where, tokens, weights, most) {
    const traces = Array.from({ length: LINES }, (_, shade) => ({
      type: "scatter", mode: "lines", x: [], y: [], hoverinfo: "skip",
      line: { color: colour("--mark"), width: 0.5 + 2.5 * (shade + 1) / LINES }, opacity: (shade + 1) / LINES,
    }));
    const faintest = Math.min(FAINTEST, 0.5 / tokens.length);
    weights.forEach((row, query) => row.forEach((weight, key) => {
      if (weight < faintest) return;
      const trace = traces[Math.min(LINES - 1, Math.floor(LINES * weight / Math.max(most, faintest)))];
      trace.x.push(0, 1, null);
      trace.y.push(query, key, null);
    }));
    const names = tokens.map(escape), size = { size: 11 };
    for (const [x, position] of [[-0.02, "middle left"], [1.02, "middle right"]]) {
      traces.push({
        type: "scatter", mode: "text", x: tokens.map(() => x), y: tokens.map((_, place) => place), text: names,
        textposition: position, textfont: size, hoverinfo: "skip", cliponaxis: false,
      });
    }
    const none = { visible: false, showgrid: false, zeroline: false };
    return draw(where, traces, {
      height: 50 + 16 * tokens.length, margin: { l: 90, r: 90, t: 10, b: 10 },
      xaxis: { ...none, range: [-0.05, 1.05] }, yaxis: { ...none, range: [tokens.length - 0.4, -0.6] },
    });
  }

  return { escape, signed, map, columns, ranking, matrix, lines };
})();
