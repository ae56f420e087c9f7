// The application as it flows: operators as cards, edges as bands as wide as their rows, coloured by distance.

import * as dagre from "./vendor/dagre.esm.js";
import { $, h, s } from "./dom.js";
import { DISTANCES, bytes, count, percent, seconds } from "./format.js";

const WIDTH = 216, SMALL = 132, LINE = 17, WIDEST = 26;
let drawn = ""; // the shape that is on the page: when it is the same, only numbers change

const KINDS = { "~late": "late rows", "~dead": "dead letters" }; // what ends a sink's name, and what it takes
const kindOf = (sink) => Object.keys(KINDS).find((kind) => sink.endsWith(kind)) ?? "";
const operatorOf = (sink) => sink.slice(0, sink.length - kindOf(sink).length);
const sinksOf = (now) => now.graph.sinks.filter((name) => operatorOf(name) in now.graph.operators);

const wide = () => $("graph").clientWidth >= 640;

export function legend() {
  $("flow-legend").replaceChildren(
    ...DISTANCES.map(([name, text]) => h("li", {}, h("i", { class: `swatch d-${name}` }), text)),
  );
}

function cards(now) {
  const sources = now.graph.sources.map((name) => ({
    id: `source ${name}`,
    title: name,
    kind: "source",
    lines: [`${count(Math.max(0, ...now.edges.filter((edge) => edge.source === name).map((edge) => edge.rows)) / now.span)} rows/s`, `lag ${seconds(now.lag)}`],
  }));
  const operators = Object.entries(now.graph.operators).map(([name, about]) => operatorCard(name, about, now));
  const sinks = sinksOf(now).map((name) => {
    const age = now.sinks[name];
    return {
      id: `sink ${name}`,
      title: KINDS[kindOf(name)] ?? "sink",
      kind: "sink",
      lines: age ? [`p50 ${seconds(age.p50)}`, `p99 ${seconds(age.p99)}`] : ["no rows yet"],
    };
  });
  return [...sources, ...operators, ...sinks];
}

function operatorCard(name, about, now) {
  const op = now.operators[name];
  const what = `${about.what}${about.key.length ? ` by ${about.key.map(([column]) => column).join(", ")}` : ""}`;
  const lines = [];
  if (op) {
    lines.push(`${count(op.rows_per_s)} rows/s · ${percent(op.busy)} busy`);
    if (op.latency) lines.push(`p50 ${seconds(op.latency.p50)} · p99 ${seconds(op.latency.p99)}`);
    if (op.spent) lines.push(`function ${seconds(op.spent.function)} per row`, `+ ${seconds(op.spent.fetching + op.spent.encoding + op.spent.writing)} state`);
    if (op.keys !== null) lines.push(`${count(op.keys)} keys · ${bytes(op.state_bytes)}`);
    if (op.watermark !== null && op.watermark < 4e18)
      lines.push(`watermark ${new Date(op.watermark / 1000).toISOString().slice(0, 19).replace("T", " ")}`);
    if (op.imbalance !== null && now.servers_count > 1) lines.push(`busiest server ${op.imbalance.toFixed(2)} × average`);
    for (const [reason, rows] of Object.entries(op.dropped)) lines.push(`${count(rows)} ${reason.replace("_", " ")}`);
  }
  return { id: name, title: name, kind: "operator", what, lines, busy: op?.busy ?? 0, congested: op?.congested };
}

function size(card) {
  if (card.kind !== "operator") return [SMALL, 34 + LINE * card.lines.length];
  return [WIDTH, 64 + LINE * (card.lines.length + (card.congested ? 1 : 0))];
}

function links(now) {
  const top = now.graph.sources;
  const known = now.edges.map((edge) => ({
    ...edge,
    from: top.includes(edge.source) ? `source ${edge.source}` : edge.source,
    to: edge.target,
  }));
  const out = sinksOf(now).map((name) => ({
    from: operatorOf(name),
    to: `sink ${name}`,
    rows: now.sink_rows[name] ?? 0,
    distance: {},
    sink: true,
  }));
  return [...known, ...out];
}

export function draw(now) {
  const all = cards(now), edges = links(now), across = wide();
  const g = new dagre.graphlib.Graph({ multigraph: true })
    .setGraph({ rankdir: across ? "LR" : "TB", nodesep: 26, ranksep: across ? 108 : 62, marginx: 6, marginy: 12 })
    .setDefaultEdgeLabel(() => ({}));
  for (const card of all) {
    const [width, height] = size(card);
    g.setNode(card.id, { width, height });
  }
  edges.forEach((edge, i) => g.setEdge(edge.from, edge.to, {}, `${i}`));
  dagre.layout(g);
  const most = Math.max(1, ...edges.map((edge) => edge.rows));
  const { width, height } = g.graph();
  const picture = s("svg", {
    viewBox: `0 0 ${width} ${height}`,
    role: "group",
    "aria-label": "The application as a graph",
  });
  // never larger than drawn, so that text stays as large as elsewhere; narrower screens scroll or shrink a little
  picture.style.maxWidth = `${width}px`;
  picture.style.minWidth = `${Math.min(width, across ? 620 : 0)}px`;
  const ports = spread(edges, g, across);
  for (const [i, edge] of edges.entries()) {
    const inner = g.edge(edge.from, edge.to, `${i}`).points.slice(1, -1);
    picture.append(band(edge, [ports[i][0], ...(inner.length > 1 ? inner.map((p) => [p.x, p.y]) : []), ports[i][1]], most, across, now));
  }
  for (const card of all) picture.append(node(card, g.node(card.id)));
  const shape = JSON.stringify([all.map((c) => c.id), across]);
  const focused = drawn === shape ? document.activeElement?.dataset?.node : null;
  $("graph").replaceChildren(picture);
  drawn = shape;
  if (focused) picture.querySelector(`[data-node="${CSS.escape(focused)}"]`)?.focus();
}

function node(card, at) {
  const [x, y] = [at.x - at.width / 2, at.y - at.height / 2];
  const said = [card.title, card.what, ...card.lines, card.congested ? "congested" : ""].filter(Boolean).join(", ");
  const group = s("g", {
    class: `node ${card.kind}${card.congested ? " congested" : ""}`,
    transform: `translate(${x} ${y})`,
    tabindex: 0,
    role: "img",
    "aria-label": said,
    "data-node": card.id,
  });
  group.append(s("rect", { width: at.width, height: at.height, rx: 8 }));
  if (card.kind !== "operator") {
    group.append(s("text", { x: at.width / 2, y: 21, "text-anchor": "middle", class: "title" }, cut(card.title, 15)));
    card.lines.forEach((line, i) =>
      group.append(s("text", { x: at.width / 2, y: 40 + LINE * i, "text-anchor": "middle" }, line)),
    );
    return group;
  }
  group.append(s("text", { x: 12, y: 22, class: "title" }, cut(card.title, 24)));
  group.append(s("text", { x: 12, y: 39, class: "what" }, cut(card.what, 28)));
  const bar = at.width - 24;
  group.append(s("rect", { x: 12, y: 46, width: bar, height: 4, rx: 2, class: "bar" }));
  group.append(s("rect", { x: 12, y: 46, width: bar * card.busy, height: 4, rx: 2, class: "busy" }));
  const lines = card.congested ? ["▲ congested", ...card.lines] : card.lines;
  lines.forEach((line, i) =>
    group.append(s("text", { x: 12, y: 67 + LINE * i, class: line.startsWith("▲") ? "alarm" : null }, line)),
  );
  return group;
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// Where each edge leaves its card and arrives at the next: the edges of a side evenly, in the order of their other ends.
function spread(edges, g, across) {
  const ports = edges.map(() => []);
  const along = (node) => (across ? node.y : node.x);
  for (const [end, other, k] of [["from", "to", 0], ["to", "from", 1]])
    for (const id of new Set(edges.map((edge) => edge[end]))) {
      const node = g.node(id), length = across ? node.height : node.width;
      const mine = edges.map((edge, i) => i).filter((i) => edges[i][end] === id)
        .sort((a, b) => along(g.node(edges[a][other])) - along(g.node(edges[b][other])));
      mine.forEach((i, nth) => {
        const at = along(node) + length * ((nth + 1) / (mine.length + 1) - 0.5);
        const border = (across ? node.x : node.y) + ((k ? -1 : 1) * (across ? node.width : node.height)) / 2;
        ports[i][k] = across ? [border, at] : [at, border];
      });
    }
  return ports;
}

// An edge is a band, split lengthwise into one strip per distance.
function band(edge, points, most, across, now) {
  const line = smooth(points, across);
  const width = Math.max(2, WIDEST * Math.sqrt(edge.rows / most));
  const group = s("g", { class: "edge" });
  const rows = Object.values(edge.distance).reduce((a, b) => a + b, 0);
  let at = -width / 2;
  const strips = rows ? DISTANCES.map(([name]) => [name, (edge.distance[name] ?? 0) / rows]) : [["source", 1]];
  for (const [name, share] of strips) {
    if (!share) continue;
    const next = at + width * share;
    group.append(s("path", { d: strip(line, at, next), class: `d-${name}` }));
    at = next;
  }
  const text = edge.sink
    ? `${count(edge.rows / now.span)} rows/s`
    : `${count(edge.rows / now.span)} rows/s${edge.local === null ? "" : ` · ${percent(edge.rows ? edge.local / edge.rows : null)} stayed`}`;
  const middle = line[Math.floor(line.length / 2)];
  const below = across ? Math.max(14, width / 2 + 14) : 4;
  const label = s("text", { x: middle[0] + (across ? 0 : width / 2 + 8), y: middle[1] + below, "text-anchor": across ? "middle" : "start" });
  // two short lines fit between the cards
  text.split(" · ").forEach((part, i) => label.append(s("tspan", { x: label.getAttribute("x"), dy: i ? 15 : 0 }, part)));
  group.append(label, s("title", {}, `${edge.source ?? edge.from} → ${edge.target ?? "sink"}${edge.grouping ? ` by ${edge.grouping}` : ""}: ${text}`));
  return group;
}

// Points along cubic curves that leave and arrive in the direction of the layout.
function smooth(points, across) {
  const out = [];
  for (let i = 0; i + 1 < points.length; i++) {
    const [a, b] = [points[i], points[i + 1]];
    const c = across ? [(a[0] + b[0]) / 2, a[1]] : [a[0], (a[1] + b[1]) / 2];
    const d = across ? [(a[0] + b[0]) / 2, b[1]] : [b[0], (a[1] + b[1]) / 2];
    for (let k = i ? 1 : 0; k <= 16; k++) {
      const t = k / 16, u = 1 - t;
      out.push([0, 1].map((j) => u ** 3 * a[j] + 3 * u * u * t * c[j] + 3 * u * t * t * d[j] + t ** 3 * b[j]));
    }
  }
  return out;
}

function strip(line, low, high) {
  const side = (offset) =>
    line.map(([x, y], i) => {
      const [ax, ay] = line[Math.max(0, i - 1)], [bx, by] = line[Math.min(line.length - 1, i + 1)];
      const length = Math.hypot(bx - ax, by - ay) || 1;
      return `${(x - ((by - ay) / length) * offset).toFixed(1)} ${(y + ((bx - ax) / length) * offset).toFixed(1)}`;
    });
  return `M${side(low).join("L")}L${side(high).reverse().join("L")}Z`;
}
