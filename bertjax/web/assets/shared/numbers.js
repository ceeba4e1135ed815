// Numbers as text.

// A number with its sign: "+0.25", "−0.25" (U+2212); "0.00" has none. null: "–".
export function signed(value, digits = 2) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const text = Math.abs(value).toFixed(digits);
  if (Number(text) === 0) return text;
  return (value < 0 ? "−" : "+") + text;
}

// A number without a plus sign: "0.25", "−0.25".
export function plain(value, digits = 2) {
  return signed(value, digits).replace(/^\+/, "");
}

// A probability or share as per cent: "25.0 %"; small ones keep a digit that is not 0: "0.04 %", "<0.01 %".
export function share(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const percent = 100 * value;
  if (percent === 0 || percent >= 10) return `${percent.toFixed(1)} %`;
  if (percent < 0.01) return "<0.01 %";
  return `${percent.toFixed(percent < 1 ? 2 : 1)} %`;
}

// A signed number with its unit: "+0.25 points"; no unit: "+0.25".
export function withUnit(value, digits, unit) {
  return [signed(value, digits), unit].filter(Boolean).join(" ");
}

// A weight of attention: "0.123", "0" below 0.0005.
export function weightText(weight) {
  return weight < 0.0005 ? "0" : weight.toFixed(3);
}
