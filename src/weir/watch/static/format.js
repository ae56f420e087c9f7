// Numbers as people read them.

const UNITS = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];
const NOTHING = "–";

const short = (x) => (Math.abs(x) >= 100 || x === 0 ? x.toFixed(0) : x.toPrecision(Math.abs(x) < 1 ? 2 : 3).replace(/\.?0+$/, ""));

export function count(x) {
  if (x === null || x === undefined || Number.isNaN(x)) return NOTHING;
  for (const [size, unit] of UNITS) if (Math.abs(x) >= size) return `${short(x / size)} ${unit}`;
  return short(x);
}
export const exact = (x) => (x === null || x === undefined ? NOTHING : Math.round(x).toLocaleString("en"));
export const bytes = (x) => (x === null || x === undefined ? NOTHING : `${count(x)}B`.replace(/(\d)B/, "$1 B"));
export const percent = (x) => (x === null || x === undefined ? NOTHING : `${(100 * x).toFixed(x > 0 && x < 0.01 ? 1 : 0)} %`);
export function seconds(x) {
  if (x === null || x === undefined) return NOTHING;
  if (x === 0) return "0 s";
  if (x < 1e-3) return `${short(x * 1e6)} µs`;
  if (x < 1) return `${short(x * 1e3)} ms`;
  if (x < 120) return `${short(x)} s`;
  if (x < 7200) return `${short(x / 60)} min`;
  return x < 172800 ? `${short(x / 3600)} h` : `${short(x / 86400)} d`;
}
export const times = (x) => (x === null || x === undefined ? NOTHING : `${x.toFixed(2)} ×`);
export const clock = (t) => new Date(t * 1000).toLocaleTimeString("en-GB");
export function moment(t) {
  const then = new Date(t * 1000);
  const today = then.toDateString() === new Date().toDateString();
  return today ? clock(t) : `${then.toLocaleDateString("en-CA")} ${clock(t)}`;
}
export const ago = (t) => {
  const passed = Date.now() / 1000 - t;
  return passed < 2 ? "now" : `${seconds(Math.round(passed))} ago`;
};
export const DISTANCES = [
  ["process", "stayed on its server"],
  ["node", "same host"],
  ["rack", "same rack"],
  ["any", "further"],
  ["source", "from the source"],
];
