// Time lines on one axis: zoom, cursor and marks are those of all charts.

import { $, css, get, h } from "./dom.js";
import { DISTANCES, bytes, clock, count, moment, percent, seconds, times } from "./format.js";

/* global uPlot */

const RANGES = [["1 min", 60], ["10 min", 600], ["1 h", 3600], ["1 day", 86400], ["all", Infinity]];
const MARKS = { reconfigured: ["◆", "--mark-a"], scaled: ["▲", "--mark-b"], "ran again": ["↻", "--mark-c"], restarted: ["●", "--mark-d"] };
const PALETTE = ["--s1", "--s2", "--s3", "--s4", "--s5", "--s6"];
const PHASES = [["job", "--s1"], ["plan", "--s2"], ["commit", "--s3"], ["deliver", "--s4"], ["waiting", "--s0"]];
const HEIGHT = 158;

const CHARTS = [
  { id: "rows", title: "Rows per second", format: count, series: (d) => [["rows/s", d.rows_per_s]] },
  { id: "locality", title: "Stayed on their server, per edge", format: percent, top: 1, series: (d) => Object.entries(d.locality) },
  {
    id: "seconds",
    title: "Seconds of a batch",
    format: seconds,
    stacked: true,
    series: (d) => PHASES.map(([name, colour]) => [name, d.seconds[name], colour]),
  },
  {
    id: "bytes",
    title: "Bytes per second, by distance",
    format: (x) => bytes(x),
    stacked: true,
    series: (d) => DISTANCES.filter(([name]) => name !== "process" && d.bytes_per_s[name]).map(([name, text]) => [text, d.bytes_per_s[name], `--d-${name}`]),
  },
  {
    id: "latency",
    title: "Latency, and lag of the oldest row",
    format: seconds,
    series: (d) => [["p50", d.latency.p50], ["p99", d.latency.p99], ["lag", d.lag]],
  },
  { id: "imbalance", title: "Busiest server over the average", format: times, series: (d) => Object.entries(d.imbalance) },
  { id: "moved", title: "Keys that moved", format: count, bars: true, series: (d) => [["keys", d.moved_keys]] },
  { id: "count", title: "Servers", format: count, steps: true, series: (d) => [["servers", d.servers]] },
];

let data = null, range = Infinity, zoomed = null, plots = [], pending = false, again = false;

export function setUp() {
  $("ranges").replaceChildren(
    ...RANGES.map(([text, length]) =>
      h("button", { type: "button", "aria-pressed": `${length === range}`, onclick: () => choose(length) }, text),
    ),
  );
  $("mark-legend").replaceChildren(
    ...Object.entries(MARKS).map(([kind, [sign, colour]]) => {
      const mark = h("b", {}, sign);
      mark.style.color = `var(${colour})`;
      return h("li", {}, mark, ` ${kind}`);
    }),
  );
  new ResizeObserver(resize).observe($("charts"));
}

function choose(length) {
  range = length;
  zoomed = null;
  [...$("ranges").children].forEach((button, i) => button.setAttribute("aria-pressed", RANGES[i][1] === length));
  load();
}

// Reads the lines again: the server has thinned them out to what a screen can show of the range.
export async function load() {
  if (pending) {
    again = true;
    return;
  }
  pending = true;
  try {
    const query = new URLSearchParams();
    if (zoomed) [["from", zoomed[0]], ["to", zoomed[1]]].forEach(([name, at]) => query.set(name, at));
    else if (Number.isFinite(range) && data?.last) query.set("from", data.last - range);
    data = await get(`api/timeline?${query}`);
    render();
  } finally {
    pending = false;
    if (again) {
      again = false;
      load();
    }
  }
}

// Whether new batches would change the picture: within a long range a few more are less than a pixel.
export const due = (time) => !zoomed && (data === null ? !pending : !data.last || time - data.last >= Math.min(range, data.last - data.first) / 600);

export function recolour() {
  plots.forEach((plot) => plot.u.destroy());
  plots = [];
  $("charts").replaceChildren();
  if (data) render();
}

function render() {
  $("shown").textContent = data.time.length
    ? `${moment(data.time[0])} to ${clock(data.time.at(-1))}, ${count(data.batches.reduce((a, b) => a + b, 0))} batches`
    : "no batches in this range";
  for (const chart of CHARTS) {
    const series = chart.series(data).map(([name, values, colour], i) => [name, values, colour ?? PALETTE[i % PALETTE.length]]);
    const names = series.map(([name]) => name).join("\n");
    let plot = plots.find((one) => one.chart === chart);
    if (plot && plot.names !== names) {
      plot.u.destroy();
      plot.figure.remove();
      plots = plots.filter((one) => one !== plot);
      plot = null;
    }
    if (!series.length) continue;
    const columns = [data.time, ...(chart.stacked ? stack(series) : series.map(([, values]) => values))];
    if (plot) {
      plot.raw = series;
      plot.u.setData(columns);
      say(plot, null);
    } else plots.push(make(chart, series, columns, names));
  }
  plots.sort((a, b) => CHARTS.indexOf(a.chart) - CHARTS.indexOf(b.chart));
  plots.forEach(({ figure }, i) => {
    if ($("charts").children[i] !== figure) $("charts").insertBefore(figure, $("charts").children[i] ?? null);
  });
}

function stack(series) {
  const sum = new Array(data.time.length).fill(0);
  return series.map(([, values]) => values.map((value, i) => (sum[i] += value ?? 0)));
}

function make(chart, series, columns, names) {
  const area = h("div", { class: "plot", tabindex: 0, role: "img", "aria-label": `${chart.title} over time` });
  const keys = h("ul", { class: "legend values" });
  const figure = h("figure", { id: `chart-${chart.id}` }, h("figcaption", {}, h("b", {}, chart.title), keys), area);
  $("charts").append(figure);
  const plot = { chart, figure, keys, names, raw: series };
  const axis = { stroke: css("--dim"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  plot.u = new uPlot(
    {
      width: area.clientWidth || 300,
      height: HEIGHT,
      legend: { show: false },
      cursor: {
        sync: { key: "weir", setSeries: false },
        drag: { x: true, y: false, setScale: false },
        points: { size: 7 },
      },
      scales: { y: { range: (u, low, high) => [0, chart.top ?? (high > 0 ? high * 1.08 : 1)] } },
      axes: [
        { ...axis, size: 28, values: (u, at) => at.map((t) => (at.length > 1 && at.at(-1) - at[0] > 86400 ? new Date(t * 1000).toLocaleDateString("en-CA") : clock(t).slice(0, at.at(-1) - at[0] < 600 ? 8 : 5))), space: 74 },
        { ...axis, size: 62, values: (u, at) => at.map((y) => chart.format(y)), space: 34 },
      ],
      series: [
        {},
        ...series.map(([name, , colour]) => ({
          label: name,
          stroke: css(colour),
          width: chart.stacked ? 1 : 2,
          fill: chart.stacked ? css(colour) : chart.bars ? css(colour) : undefined,
          paths: chart.bars ? uPlot.paths.bars({ size: [0.6, 24, 2] }) : chart.steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
          points: { show: columns[0].length < 40 && !chart.stacked && !chart.bars },
          spanGaps: true,
        })),
      ],
      // the strips of a stack are painted from the top one down to the lowest
      bands: chart.stacked ? series.slice(1).map((_, i) => ({ series: [i + 2, i + 1] })) : [],
      hooks: {
        draw: [drawMarks],
        setCursor: [(u) => say(plot, u.cursor.idx)],
        setSelect: [(u) => u.select.width > 4 && zoom(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"))],
      },
    },
    columns,
    area,
  );
  area.addEventListener("dblclick", () => choose(Infinity));
  area.addEventListener("keydown", (event) => key(event, plot));
  say(plot, null);
  return plot;
}

function zoom(from, to) {
  zoomed = [from, to];
  for (const { u } of plots) u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  [...$("ranges").children].forEach((button) => button.setAttribute("aria-pressed", "false"));
  load();
}

function key(event, plot) {
  const { u } = plot, last = data.time.length - 1;
  const at = u.cursor.idx ?? last;
  const [low, high] = [data.time[0], data.time[last]], span = high - low;
  const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -last, End: last };
  if (event.key in moves) {
    const next = Math.min(last, Math.max(0, at + moves[event.key]));
    for (const one of plots) one.u.setCursor({ left: one.u.valToPos(data.time[next], "x"), top: 20 }, true, false);
  } else if (event.key === "+") zoom(data.time[at] - span / 4, data.time[at] + span / 4);
  else if (event.key === "-") zoom(low - span / 2, high + span / 2);
  else if (event.key === "Escape") choose(Infinity);
  else return;
  event.preventDefault();
}

// Says the values under the cursor, or the latest ones, and what was marked there.
function say(plot, at) {
  const last = data.time.length - 1, i = at ?? last;
  const items = plot.raw.map(([name, values, colour]) => {
    const swatch = h("i", { class: "swatch" });
    swatch.style.background = `var(${colour})`;
    return h("li", {}, swatch, `${name} `, h("b", {}, plot.chart.format(values[i])));
  });
  if (at !== null && at !== undefined && last >= 0) {
    items.unshift(h("li", { class: "dim" }, `${clock(data.time[i])} batch ${data.batch[i]}`));
    const gap = last ? (data.time[last] - data.time[0]) / last / 2 : 1;
    for (const mark of data.marks.filter((m) => Math.abs(m.time - data.time[i]) <= gap && MARKS[m.kind]))
      items.push(h("li", {}, `${MARKS[mark.kind][0]} ${mark.kind} ${mark.text}`));
  }
  plot.keys.replaceChildren(...items);
}

function drawMarks(u) {
  const context = u.ctx, { left, top, width, height } = u.bbox, ratio = devicePixelRatio;
  context.save();
  context.font = `${11 * ratio}px system-ui`;
  context.textAlign = "center";
  for (const mark of data.marks) {
    const look = MARKS[mark.kind];
    if (!look) continue;
    const x = u.valToPos(mark.time, "x", true);
    if (x < left || x > left + width) continue;
    context.strokeStyle = context.fillStyle = css(look[1]);
    context.globalAlpha = 0.75;
    context.lineWidth = ratio;
    context.setLineDash([3 * ratio, 3 * ratio]);
    context.beginPath();
    context.moveTo(x, top + 12 * ratio);
    context.lineTo(x, top + height);
    context.stroke();
    context.globalAlpha = 1;
    context.fillText(look[0], x, top + 10 * ratio);
  }
  context.restore();
}

function resize() {
  for (const { u, figure } of plots) u.setSize({ width: figure.querySelector(".plot").clientWidth, height: HEIGHT });
}
