// Colours of the page's theme, and scales between them.

// The value of a custom property of the page, such as colour("--mark").
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Red, green and blue from 0 to 255 of "#rgb", "#rrggbb" or "rgb(r, g, b)".
export function channels(text) {
  const digits = /^#(?:([0-9a-f]{3})|([0-9a-f]{6}))$/i.exec(text);
  if (digits?.[1]) return [...digits[1]].map(digit => parseInt(digit + digit, 16));
  if (digits) return [0, 2, 4].map(start => parseInt(digits[2].slice(start, start + 2), 16));
  return (text.match(/[\d.]+/g) ?? []).slice(0, 3).map(Number);
}

// The colour between two, linear in sRGB. fraction: from 0 (first) to 1 (second).
export function between(first, second, fraction) {
  const [from, to] = [channels(first), channels(second)];
  const mixed = from.map((value, index) => Math.round(value + (to[index] - value) * fraction));
  return `rgb(${mixed.join(", ")})`;
}

// Scale from loss (-1) over no change (0) to gain (1); values beyond are cut.
export function diverging(fraction) {
  return divergingScale()(fraction);
}

// The same as a function that reads the theme once, for many colours.
export function divergingScale() {
  const [low, middle, high] = ["--low", "--middle", "--high"].map(colour);
  return fraction => between(middle, fraction < 0 ? low : high, Math.min(1, Math.abs(fraction)));
}

// Black or white, whichever has more contrast with a colour.
export function inkOn(background) {
  const linear = channels(background).map(value => {
    const unit = value / 255;
    return unit <= 0.04045 ? unit / 12.92 : ((unit + 0.055) / 1.055) ** 2.4;
  });
  const light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  return light > 0.179 ? "#111111" : "#ffffff";
}

// Call a function whenever the page changes between light and dark.
export function onTheme(draw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  new MutationObserver(draw).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
}

// Change between light and dark.
export function toggleTheme() {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  root.dataset.theme = (root.dataset.theme ?? system) === "dark" ? "light" : "dark";
}
