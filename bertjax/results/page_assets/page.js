"use strict";
// The page: what is chosen, and what follows from it. Texts from data are set as text, never as HTML.

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = id => document.getElementById(id);
  const isMap = data.kind === "head", isNamed = !isMap && data.kind !== "layer", isCell = data.kind === "cell";
  const state = { metric: data.drawn, chosen: 0, sort: "change", down: false };
  const atHead = new Map(data.places.map(([layer, head], place) => [`${layer}.${head}`, place]));
  const SURE = 0.05;

  // ---- values -------------------------------------------------------------------------------------------------
  // How the chosen metric is printed: unit, factor, digits, and sign: 1 where greater is better, else -1.
  const measure = () => data.metrics.find(one => one.name === state.metric);
  const column = name => data.rows[state.metric][name];
  const printed = (name, place) => {
    const value = column(name)[place];
    return value === null ? null : measure().factor * value;
  };
  const isWeighed = place => column("q")[place] !== null;
  const isSure = place => isWeighed(place) && column("q")[place] < SURE;
  // What cannot be below 0 has no sign.
  const signed = value => measure().effects && !measure().tested && value > 0 ? value.toFixed(measure().digits) : Charts.signed(value, measure().digits);
  const withUnit = text => `${text} ${measure().unit}`.trim();
  const share = value => value === null ? "undefined" : value >= 0.001 ? String(Number(value.toPrecision(2))) :
    value >= 0.00001 ? String(Number(value.toFixed(5))) : "<0.00001";
  // The least p that random swaps can give is an upper bound of the true one.
  const bounded = (value, name) => {
    const least = data.statistics[state.metric]?.[name];
    return typeof least === "number" && value !== null && value <= least * (1 + 1e-9);
  };
  const bound = (place, value) => `${bounded(column("p")[place], "least_p") ? "≤" : ""}${share(value)}`;
  const equals = text => /^[<≤]/.test(text) ? `${text[0]} ${text.slice(1)}` : `= ${text}`;
  const interval = place => {
    const low = printed("low", place), high = printed("high", place);
    return low === null || high === null ? "" : `${signed(low)} to ${signed(high)}`;
  };
  const flips = place => {
    const gains = column("gains")[place], losses = column("losses")[place];
    return gains === null ? "" : `${gains} become right, ${losses} wrong`;
  };
  const score = place => printed("score", place) === null ? "undefined" : printed("score", place).toFixed(measure().digits);

  function describe(place, separator) {
    const parts = [
      measure().effects ? `${data.kind} ${data.names[place]}` : `${data.kind} ${data.names[place]}: score ${score(place)}`,
      printed("difference", place) === null ? "change undefined" :
        `${whatChanges()} ${withUnit(signed(printed("difference", place)))} (95 % CI ${interval(place) || "undefined"})`,
      !measure().tested ? "" : `p ${isWeighed(place) ? `${equals(bound(place, column("p")[place]))}, q ${equals(bound(place, column("q")[place]))}` : "and q undefined"}`,
    ];
    const best = column("best_p")[place];
    if (measure().sign * printed("difference", place) > 0 && best !== null) {
      const text = `${bounded(best, "least_best_p") ? "≤" : ""}${share(best)}`;
      parts.push(`by chance the best of ${data.ablations} would stand out as much with p ${equals(text)}`);
    }
    if (flips(place)) parts.push(flips(place));
    return parts.filter(Boolean).join(separator);
  }

  // ---- small helpers ------------------------------------------------------------------------------------------
  function element(kind, text, className) {
    const made = document.createElement(kind);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  }
  function fill(select, options, chosen) {
    select.replaceChildren(...options.map(([value, text]) => {
      const option = element("option", text);
      option.value = value;
      return option;
    }));
    if (chosen !== undefined) select.value = String(chosen);
  }
  const setText = (id, text) => { byId(id).textContent = text; };

  // Bytes that are compressed by gzip and written in base64.
  async function unpack(packed) {
    const bytes = Uint8Array.from(atob(packed), letter => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  // ---- choosing an ablation -----------------------------------------------------------------------------------
  // The page's address names what is chosen, so that it can be sent; each choice but those of arrow keys can be gone back to.
  const addressed = () => {
    try {
      return data.names.indexOf(decodeURIComponent(location.hash.slice(1)));
    } catch (error) { // a % that encodes nothing
      return -1;
    }
  };
  function address(place, replace) {
    const hash = `#${encodeURIComponent(data.names[place])}`;
    if (hash === location.hash) return;
    if (replace) history.replaceState(null, "", hash); else history.pushState(null, "", hash);
  }

  function choose(place, replace = false) {
    if (place === undefined || place === null || place < 0) return;
    address(place, replace);
    open(place);
  }

  function open(place) {
    state.chosen = place;
    const first = data.heads[place][0]; // of a layer or a set; places of whole layers name none
    if (first !== undefined && byId("layer").value !== "") {
      const [layer, head] = first.split("=")[0].split(".");
      byId("layer").value = layer;
      byId("head").value = head;
    }
    byId("run").value = String(Math.max(0, data.attention.runs.indexOf(data.names[place])));
    show();
    showAttention();
  }

  function showMap() {
    const cells = drawn(data.names.map((_, place) => place))
      .map(cell => ({ ...cell, layer: data.places[cell.place][0], head: data.places[cell.place][1] }));
    const [layer, head] = data.places[state.chosen];
    const beyond = Charts.map("map", cells, data.model, { layer, head }, measure());
    setText("beyond", beyond ? `${beyond} ${beyond === 1 ? "head lies" : "heads lie"} beyond the colours' scale.` : "");
  }

  function bars() {
    const wanted = byId("filter").value.trim().toLowerCase(), sure = byId("sure").checked;
    return data.names.map((name, place) => place)
      .filter(place => !wanted || (isNamed && data.names[place].toLowerCase().includes(wanted)) ||
        data.names[place].startsWith(wanted) || data.heads[place].some(head => head.startsWith(wanted)))
      .filter(place => !sure || isSure(place));
  }

  function unfound() {
    const wanted = byId("filter").value.trim(), called = `called ${wanted}`;
    if (!byId("sure").checked) return called;
    return wanted ? `${called} and more than chance` : "more than chance";
  }

  // What the charts draw of ablations.
  const drawn = places => places.map(place => ({
    place, name: data.names[place], kind: data.kind, change: printed("difference", place), low: printed("low", place),
    high: printed("high", place), sure: isSure(place) || !measure().tested, text: Charts.escape(describe(place, "\n")).replace(/\n/g, "<br>"),
  }));

  // The table begins with the largest loss.
  const sortByLoss = () => { if (state.sort === "change") state.down = measure().order < 0; };
  const keys = {
    name: place => isNamed ? data.names[place] : 1000 * data.places[place][0] + (data.places[place][1] ?? 0),
    score: place => printed("score", place), change: place => printed("difference", place),
    gain: place => printed("difference", place) === null ? null : measure().order * printed("difference", place),
    q: place => column("q")[place], gains: place => column("gains")[place], losses: place => column("losses")[place],
  };
  function sorted(places, key) {
    return [...places].sort((a, b) => {
      const left = keys[key](a), right = keys[key](b);
      if (left === null || right === null) return (left === null) - (right === null);
      return left < right ? -1 : left > right ? 1 : a - b;
    });
  }

  function showRanking() {
    const places = sorted(bars(), "gain");
    const chart = drawn(places);
    const counted = `${data.ablations} ${data.kind}${data.ablations === 1 ? "" : "s"}`;
    byId("ranking").classList.toggle("hidden", !chart.length);
    if (chart.length) Charts.ranking("ranking", chart, data.names[state.chosen], measure());
    setText("count", chart.length ? `${places.length} of ${counted}` : `Nothing found: none of the ${counted} is ${unfound()}.`);
    const hasFlips = column("gains").some(value => value !== null);
    const scores = measure().effects ? [] : [["score", "score"]];
    const titles = [["name", data.kind], ...scores, ["change", whatChanges()], [null, "95 % interval"], ...(measure().tested ? [["q", "q"]] : [])];
    if (hasFlips) titles.push(["gains", "become right"], ["losses", "become wrong"]);
    const head = element("tr");
    for (const [key, title] of titles) {
      const cell = element("th", key ? undefined : title, key === "name" ? "" : "number");
      cell.scope = "col";
      if (key) {
        const button = element("button", title);
        button.type = "button";
        button.addEventListener("click", () => { state.down = state.sort === key && !state.down; state.sort = key; showRanking(); });
        if (state.sort === key) cell.setAttribute("aria-sort", state.down ? "descending" : "ascending");
        cell.append(button);
      }
      head.append(cell);
    }
    const order = sorted(places, state.sort);
    if (state.down) order.reverse();
    const focused = document.activeElement, row = focused?.closest("#table tbody tr")?.dataset.name;
    const heading = focused?.closest("#table thead th")?.cellIndex;
    byId("table").tHead.replaceChildren(head);
    byId("table").tBodies[0].replaceChildren(...order.map(place => {
      const row = element("tr", undefined, [isSure(place) ? "sure" : "", place === state.chosen ? "selected" : ""].join(" ").trim());
      row.dataset.name = data.names[place];
      const cell = element("td", undefined, "number"), button = element("button", data.names[place]);
      cell.style.textAlign = "left";
      button.type = "button";
      button.addEventListener("click", () => choose(place));
      cell.append(button);
      const change = printed("difference", place);
      row.append(cell, ...scores.map(() => element("td", score(place), "number")), element("td", signed(change), measure().sign * change < 0 ? "number loss" : "number gain"),
        element("td", interval(place), "number"), ...(measure().tested ? [element("td", isWeighed(place) ? bound(place, column("q")[place]) : share(null), "number")] : []));
      if (hasFlips) row.append(element("td", String(column("gains")[place]), "number"), element("td", String(column("losses")[place]), "number"));
      return row;
    }));
    // What had the keyboard's focus was replaced; its successor has it now.
    if (row !== undefined) [...byId("table").tBodies[0].rows].find(one => one.dataset.name === row)?.querySelector("button").focus();
    else if (heading !== undefined) head.cells[heading].querySelector("button")?.focus();
  }

  // A line of an example: pieces of text, each with its mark.
  const plain = lines => lines.map(line => line.map(([text, mark]) => mark === "name" ? `${text}:` : text.trim()).join(" ")).join(" / ");
  function lineOf(pieces) {
    const line = element("div");
    pieces.forEach(([text, mark]) => line.append(mark ? element("span", text, `mark-${mark}`) : document.createTextNode(text), mark === "name" ? " " : ""));
    return line;
  }

  // ---- examples -----------------------------------------------------------------------------------------------
  function exampleRows() {
    const [flipped, rows] = data.examples.changed[state.chosen], names = data.examples.labels;
    const called = label => names && names[label] !== undefined ? names[label] : String(label);
    return [flipped, rows.map(([place, before, after, first, second], number) => {
      const [id, label, lines] = data.examples.texts[place], details = data.examples.details[state.chosen][number] || [];
      return { id, label, lines: [...lines, ...details], before, after, first: first === undefined ? null : called(first), second: second === undefined ? null : called(second), flips: first !== second };
    })];
  }

  function showExamples() {
    const [flipped, rows] = exampleRows(), predicted = data.examples.reads === "predictions";
    for (const place of document.querySelectorAll(".chosen-name")) place.textContent = `${data.kind} ${data.names[state.chosen]}`;
    const what = predicted
      ? `${flipped} ${flipped === 1 ? "prediction changes" : "predictions change"}. ${data.examples.note}`
      : `The examples whose ${data.examples.value} changes most. ${data.examples.note}`.trim();
    const flipping = rows.filter(row => row.flips).length, rest = rows.length - flipping;
    const shown = predicted && rest ? `Shown: ${flipping ? `these, and ` : ""}${rest} whose ${data.examples.value} changes most.` : `Shown: ${rows.length}.`;
    setText("examples-note", rows.length ? `${what} ${shown}` : `${what} No output changes.`);
    const labelled = rows.some(row => row.label !== "none");
    const titles = ["id", labelled ? "label" : null, predicted ? "prediction" : null, data.examples.value, "change", "text"].filter(Boolean);
    const head = element("tr");
    head.append(...titles.map(title => { const cell = element("th", title); cell.scope = "col"; return cell; }));
    byId("examples").tHead.replaceChildren(head);
    byId("examples").tBodies[0].replaceChildren(...rows.map(row => {
      const line = element("tr", undefined, row.flips && predicted ? "sure" : "");
      line.append(element("td", row.id));
      if (labelled) line.append(element("td", row.label));
      if (predicted) line.append(element("td", row.flips ? `${row.first} → ${row.second}` : row.first));
      line.append(element("td", `${row.before.toFixed(3)} → ${row.after.toFixed(3)}`, "number"),
        element("td", Charts.signed(row.after - row.before, 3), !predicted ? "number" : row.after < row.before ? "number loss" : "number gain"));
      const cell = element("td");
      cell.append(...row.lines.map(lineOf));
      line.append(cell);
      return line;
    }));
  }

  // ---- attention ----------------------------------------------------------------------------------------------
  const unpacked = new Map();
  async function stepsOf(packed) {
    if (!unpacked.has(packed)) unpacked.set(packed, await unpack(packed));
    return unpacked.get(packed);
  }
  // An ablated run is kept from its first ablated layer on, below which it is the base, as differences from the base.
  function weightsOf(steps, run, layer, head, tokens) {
    const { first_layers: firsts } = data.attention, { layers, heads } = data.model;
    const kept = one => {
      const before = firsts.slice(0, one).reduce((sum, first) => sum + layers - first, 0);
      return steps.subarray((((before + layer - firsts[one]) * heads) + head) * tokens * tokens);
    };
    const base = kept(0), differences = run && layer >= firsts[run] ? kept(run) : null;
    const weight = place => (base[place] + (differences ? differences[place] : 0)) % 256 / 255;
    return Array.from({ length: tokens }, (_, query) => Array.from({ length: tokens }, (_, key) => weight(query * tokens + key)));
  }

  // Why there is one panel alone.
  function unablated(layer, run) {
    const { runs } = data.attention, name = data.names[state.chosen];
    if (run) return `Ablating ${data.kind} ${runs[run]} changes nothing in layer ${layer}: what is ablated lies in a later layer.`;
    const most = runs.length - 1, kept = `those of the ${most === 1 ? "largest effect" : `${most} largest effects`}`;
    if (isCell) return "Of patched runs no attention is kept.";
    if (!most) return "";
    const why = runs.includes(name) ? "Nothing is ablated here." : `The attention without ${data.kind} ${name} was not kept, only ${kept}.`;
    return `${why} Choose one under "Without".`;
  }

  let asked = 0; // the newest wish; an older one that comes late is dropped
  async function showAttention() {
    if (!data.attention.samples.length) return;
    const wish = ++asked;
    const sample = data.attention.samples[Number(byId("example").value)];
    const text = sample.texts[Number(byId("text").value) % sample.texts.length];
    const [layer, head, run] = ["layer", "head", "run"].map(id => Number(byId(id).value)), view = byId("view").value;
    const steps = await stepsOf(text.weights);
    if (wish !== asked) return;
    const same = !run || layer < data.attention.first_layers[run]; // then there is nothing to see beside the base
    const both = (same ? [0] : [0, run]).map(one => weightsOf(steps, one, layer, head, text.tokens.length));
    const most = Math.max(0.01, ...both.flat().map(row => Math.max(...row))); // one scale, to compare by
    const place = data.examples.places.indexOf(sample.example), [id, label, lines] = data.examples.texts[place];
    const changed = data.examples.reads === "predictions" && exampleRows()[1].find(row => row.id === id && row.flips);
    const flip = changed ? ` (${isCell ? "with" : "without"} ${data.kind} ${data.names[state.chosen]}: ${changed.first} → ${changed.second})` : "";
    const labelled = label === "none" ? "" : `, label ${label}`;
    setText("example-text", `Example ${id}${labelled}${flip}: ${plain(lines)}`);
    setText("ablated-caption", `Without ${data.kind} ${data.attention.runs[run]}`);
    byId("ablated").classList.toggle("hidden", same);
    setText("one-panel", same ? unablated(layer, run) : "");
    const jobs = [];
    ["base", "ablated"].slice(0, both.length).forEach((name, which) => {
      for (const [kind, chart] of [["lines", Charts.lines], ["matrix", Charts.matrix]]) {
        const shown = view === "both" || view === kind;
        byId(`${kind}-${name}`).classList.toggle("hidden", !shown);
        if (shown) jobs.push(chart(`${kind}-${name}`, text.tokens, both[which], most));
      }
    });
    await Promise.all(jobs);
    document.body.dataset.attention = `${layer}.${head} ${data.attention.runs[run]} ${sample.example}`;
  }

  function startAttention() {
    const { samples, runs, kept } = data.attention;
    byId("attention-parts").classList.toggle("hidden", !samples.length);
    const named = sample => { const place = data.examples.places.indexOf(sample.example); return `${data.examples.texts[place][0]}`; };
    fill(byId("example"), samples.map((sample, place) => [place, named(sample)]));
    fill(byId("text"), samples.length ? samples[0].texts.map((_, place) => [place, `text ${place + 1}`]) : []);
    byId("text").parentElement.classList.toggle("hidden", !samples.length || samples[0].texts.length < 2);
    fill(byId("layer"), Array.from({ length: data.model.layers }, (_, layer) => [layer, String(layer)]));
    fill(byId("head"), Array.from({ length: data.model.heads }, (_, head) => [head, String(head)]));
    byId("run").parentElement.classList.toggle("hidden", runs.length < 2);
    fill(byId("run"), runs.map((name, place) => [place, place ? name : "nothing"]), runs.length > 1 ? 1 : 0);
    const fewer = samples.length < kept ? ` ${samples.length} of the ${kept} kept examples fit on the page; all are in attention.npz.` : "";
    setText("attention-note", !samples.length ? "attention.npz is not in the directory of results: nothing to show." : "Weights from each token to the tokens that it attends to, of the head in this layer. " +
      `${runs.length < 2 ? "" : runs.length === 2 ? "Kept is the ablation of the largest effect." : `Kept are the ${runs.length - 1} ablations of the largest effects.`}${fewer}`);
    for (const id of ["example", "text", "layer", "head", "run", "view"]) byId(id).addEventListener("change", showAttention);
  }

  // ---- downloads ----------------------------------------------------------------------------------------------
  const formula = new RegExp(data.formula);
  const quote = value => {
    const text = value === null || value === undefined ? "" : Array.isArray(value) ? value.join(" ") : String(value);
    const safe = typeof value === "string" && formula.test(text) ? `'${text}` : text; // no formula for a spreadsheet
    return /[",\n\r]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
  };
  function save(name, lines) {
    const link = element("a");
    link.href = URL.createObjectURL(new Blob([lines.map(line => line.map(quote).join(",")).join("\n") + "\n"], { type: "text/csv" }));
    link.download = name;
    link.click();
    URL.revokeObjectURL(link.href);
  }
  function numbers() {
    const lines = [data.columns];
    for (const metric of data.metrics) {
      const rows = data.rows[metric.name];
      data.written.forEach(([name, heads], place) => {
        const known = { name, layer: data.places[place][0], head: data.places[place][1], heads };
        lines.push(data.columns.map(title => title in known ? known[title] : rows[title][place]));
      });
    }
    return lines;
  }
  function changedExamples() {
    const lines = [["name", "layer", "head", "id", "label", "before", "after", "prediction before", "prediction after", "first", "second"]];
    const chosen = state.chosen;
    data.written.forEach(([name], place) => {
      state.chosen = place;
      for (const row of exampleRows()[1]) lines.push([name, ...data.places[place], row.id, row.label, row.before, row.after, row.first, row.second, ...row.lines.map(line => plain([line]))]);
    });
    state.chosen = chosen;
    return lines;
  }

  const whatChanges = () => measure().change;
  // From where to where the ranking goes.
  const ordered = () => {
    const { order, of_model, names: [worse, better] } = measure();
    if (of_model) return `Changes with 95 % intervals, from the largest ${worse} to the largest ${better}`;
    const ends = order > 0 ? ["lowest", "highest"] : ["highest", "lowest"];
    return `${whatChanges()[0].toUpperCase()}${whatChanges().slice(1)}s with 95 % intervals, from the ${ends[0]} to the ${ends[1]}`;
  };

  function whatIsDrawn() {
    const { effects, compared, label, by } = measure();
    if (effects) return label;
    if (by === "gradients") return `${label}: how gradients say that it changes without the head`;
    return compared ? `how far the head's own is from that of ${compared}` : "how the score changes without it";
  }

  // ---- the page -----------------------------------------------------------------------------------------------
  function show() {
    if (isMap) showMap(); else showBars();
    setText("chosen", describe(state.chosen, "; "));
    showRanking();
    showExamples();
    const { label, positive, unit, sign, tested, untested } = measure();
    for (const part of document.querySelectorAll(".of-tests")) part.classList.toggle("hidden", !tested);
    if (!tested) byId("sure").checked = false;
    setText("ordered", tested ? ordered() : `${ordered()}; ${untested}`);
    for (const place of document.querySelectorAll(".drawn")) place.textContent = whatIsDrawn();
    for (const place of document.querySelectorAll(".unit")) place.textContent = unit ? `, in ${unit}` : "";
    const notes = [positive === null ? "" : `${label} is about the label “${positive}”.`, sign < 0 ? "Lower is better." : ""];
    if (measure().compared) {
      const heading = byId("examples-heading");
      heading.firstChild.textContent = "Which texts does ";
      setText("without", "");
      heading.lastChild.textContent = ` read least as ${measure().compared} does?`;
    }
    setText("positive", notes.filter(Boolean).join(" "));
    const statistics = data.statistics[state.metric];
    setText("sentence", statistics ? statistics.sentence : data.sentence);
    if (!statistics) return; // too few labels to weigh anything
    const halves = statistics.halves;
    const some = halves.chosen.map(([place, part]) => `${place} (${Math.round(100 * part)} %)`).join(", ");
    const best = measure().of_model ? `the best ${data.kind} changes the score by` : `the ${data.kind} with the ${sign < 0 ? "lowest" : "highest"} ${whatChanges()} has`;
    setText("halves", halves.on_other === null || !halves.halves ? "" :
      `Chosen on a random half of the examples, ${best} ${withUnit(signed(measure().factor * halves.on_chosen))} there and ` +
      `${signed(measure().factor * halves.on_other)} on the other half (mean of ${halves.halves} halves). Chosen most often: ${some}.`);
    const draws = `bootstrap of ${statistics.resamples.toLocaleString("en")} draws`;
    const usual = column("interval").includes("t") ? `Student's t or ${draws}, whichever is wider, corrected for skewness` : `BCa ${draws}`;
    setText("method", `Intervals: ${usual}, or score intervals where few predictions flip. ${tested ? `Test: ${statistics.test}. q: Benjamini and Hochberg. An interval is of one ${data.kind} by itself; q counts that there are ${data.ablations}.` : ""}`.trim());
  }

  function showBars() {
    Charts.columns("map", drawn(sorted(data.names.map((_, place) => place), "name")), data.names[state.chosen], measure());
  }

  function clicked(event) {
    const point = event.points[0];
    if (isMap && point.data.type === "heatmap" && Number.isInteger(point.x)) choose(atHead.get(`${point.y}.${point.x}`));
    else if (point.customdata !== undefined) choose(point.customdata);
  }

  function move(event) {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step || !isMap) return;
    event.preventDefault();
    const [layer, head] = data.places[state.chosen];
    choose(atHead.get(`${layer + step[0]}.${head + step[1]}`), true);
  }

  function start() {
    sortByLoss();
    document.title = data.title;
    setText("title", data.title);
    for (const place of document.querySelectorAll(".kinds")) place.textContent = `${data.kind}s`;
    if (isCell) setText("without", "by patching");
    if (data.metrics[0].compared || data.metrics[0].by === "gradients") setText("base-caption", "The model as it is");
    byId("picture").classList.toggle("hidden", !data.picture);
    if (data.picture) byId("picture").src = `data:image/png;base64,${data.picture}`;
    for (const place of document.querySelectorAll(".of-map")) place.classList.toggle("hidden", !isMap);
    for (const place of document.querySelectorAll(".of-bars")) place.classList.toggle("hidden", isMap);
    fill(byId("metric"), data.metrics.map(metric => [metric.name, metric.label]), state.metric);
    byId("metric").addEventListener("change", event => { state.metric = event.target.value; sortByLoss(); show(); });
    byId("filter").addEventListener("input", showRanking);
    byId("sure").addEventListener("change", showRanking);
    byId("map").addEventListener("keydown", move);
    byId("download").addEventListener("click", () => save("results.csv", numbers()));
    byId("download-examples").addEventListener("click", () => save("examples.csv", changedExamples()));
    byId("theme").addEventListener("click", () => {
      const root = document.documentElement, system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
      root.dataset.theme = (root.dataset.theme || system) === "dark" ? "light" : "dark";
      show();
      showAttention();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { show(); showAttention(); });
    byId("facts").replaceChildren(...data.facts.flatMap(([name, text]) => [element("dt", name), element("dd", text)]));
    if (data.names.length < data.ablations) setText("how-many", `The ${data.names.length.toLocaleString("en")} largest effects'`);
    startAttention();
    const sizes = data.names.map((_, place) => Math.abs(printed("difference", place) ?? 0));
    const largest = sizes.indexOf(Math.max(...sizes)), shown = () => addressed() < 0 ? largest : addressed();
    open(shown());
    addEventListener("hashchange", () => open(shown()));
    byId("map").on("plotly_click", clicked);
    byId("ranking").on("plotly_click", clicked);
    document.body.dataset.ready = "yes";
  }

  // plotly.js is a program in the page, run once it is unpacked.
  async function loadPlotly() {
    if (!window.DecompressionStream) {
      throw new Error("This page needs a newer browser: Chrome or Edge from version 80, Firefox from 113, Safari from 16.4.");
    }
    const program = await unpack(byId("plotly").textContent).catch(() => {
      throw new Error("This page is damaged: its charts cannot be unpacked. Write it again with bertjax report.");
    });
    document.head.append(element("script", new TextDecoder().decode(program)));
  }
  function fail(error) {
    setText("failure", error.message);
    byId("failure").classList.remove("hidden");
    for (const part of [byId("sentence"), byId("theme"), document.querySelector("main")]) part.classList.add("hidden");
  }

  loadPlotly().then(start, fail);
})();
