// Servers by rack and host: one column each, one row per operator, darker with more load.

import { $, h } from "./dom.js";
import { count, seconds } from "./format.js";

const UNEVEN = 2, SLOW = 2, STEPS = 9;
let view = "load", latest = null;

const VIEWS = { load: "load: rows over the average", pace: "pace: time per row over the usual" };

export function setUp() {
  $("grid-what").addEventListener("change", (event) => {
    view = event.target.value;
    draw(latest);
  });
}

export function draw(now) {
  latest = now;
  if (!now?.servers) return;
  const options = { ...VIEWS };
  for (const edge of Object.keys(now.weights)) options[`weights ${edge}`] = `weights on ${edge}`;
  if (!(view in options)) view = "load";
  const select = $("grid-what");
  if (select.options.length !== Object.keys(options).length)
    select.replaceChildren(...Object.entries(options).map(([value, text]) => h("option", { value, selected: value === view }, text)));
  scale();
  const rows = view.startsWith("weights ") ? weightRows(now, view.slice(8)) : loadRows(now);
  const racks = new Map();
  now.servers.forEach((server, i) => {
    const hosts = racks.get(server.rack) ?? racks.set(server.rack, new Map()).get(server.rack);
    (hosts.get(server.host) ?? hosts.set(server.host, []).get(server.host)).push(i);
  });
  const small = now.servers.length > 40;
  $("grid-rows").textContent = small ? `${count(now.servers.length)} servers; one column each, one row for each of ${rows.map((row) => row.name).join(", ")}` : "";
  $("grid").replaceChildren(
    ...[...racks].map(([rack, hosts]) =>
      h("section", { class: "rack" }, racks.size > 1 || rack ? h("h3", {}, `rack ${rack || "?"}`) : null, h("div", { class: "hosts" },
        ...[...hosts].map(([host, servers]) => table(host, servers, rows, now, small)))),
    ),
  );
}

function scale() {
  const boxes = [...Array(STEPS).keys()].map((step) => h("i", { class: `swatch heat-${step}` }));
  const [low, high] = view.startsWith("weights ") ? ["none", "most"] : ["0 ×", "2 ×"];
  $("grid-scale").replaceChildren(h("span", {}, low), ...boxes, h("span", {}, high), view.startsWith("weights ") ? "" : h("span", {}, "▲ stands out"));
}

function loadRows(now) {
  const names = Object.keys(now.operators).filter((name) => now.servers.some((server) => name in server[view]));
  return names.map((name) => ({
    name,
    value: (i) => now.servers[i][view][name],
    level: (x) => x / 2,
    loud: (x) => x >= (view === "load" ? UNEVEN : SLOW),
    text: (x) => x.toFixed(1),
    about: (x) => (view === "load" ? `${x.toFixed(2)} × the average rows` : `${x.toFixed(2)} × the usual time per row`),
  }));
}

function weightRows(now, edge) {
  const target = edge.split(" → ").at(-1), where = now.graph.operators[target]?.placement ?? [];
  const most = Math.max(1, ...Object.values(now.weights[edge]).flat());
  return Object.entries(now.weights[edge]).map(([sender, weights]) => ({
    name: sender === "source" ? "from sources" : `from ${sender}`,
    value: (i) => (where.includes(i) ? weights[where.indexOf(i)] : undefined),
    level: (x) => x / most,
    loud: () => false,
    text: (x) => count(x),
    about: (x) => `weight ${count(x)}`,
  }));
}

function table(host, servers, rows, now, small) {
  const head = small ? null : h("tr", {}, h("th", { class: "dim" }, "server"), ...servers.map((i) => h("th", { scope: "col", title: about(now, i) }, `${i}`)));
  const body = rows.map((row) =>
    h("tr", {}, small ? null : h("th", { scope: "row" }, row.name), ...servers.map((i) => cell(row, i, now, small))));
  const busy = h("tr", { class: "busy-row" }, small ? null : h("th", { scope: "row" }, "busy"), ...servers.map((i) => h("td", {}, small ? "" : seconds(now.servers[i].busy))));
  return h("div", { class: `host${small ? " small" : ""}` }, h("h4", {}, host || "host unknown"), h("table", {}, h("thead", {}, head), h("tbody", {}, ...body, small ? null : busy)));
}

const about = (now, i) => `server ${i} on ${now.servers[i].host || "?"}: ${count(now.servers[i].rows)} rows, busy for ${seconds(now.servers[i].busy)}`;

function cell(row, i, now, small) {
  const x = row.value(i);
  if (x === null || x === undefined) return h("td", { class: "none", "aria-label": `${row.name}: no instance or no rows` }, small ? "" : "·");
  const loud = row.loud(x), step = Math.max(0, Math.min(STEPS - 1, Math.round(row.level(x) * (STEPS - 1))));
  const text = `${row.name} on server ${i}: ${row.about(x)}`;
  const show = () => ($("grid-about").textContent = `${text}; ${about(now, i)}`);
  return h("td", { class: `heat-${step}${loud ? " loud" : ""}`, title: text, onmouseenter: show }, small ? (loud ? "▲" : "") : `${loud ? "▲ " : ""}${row.text(x)}`);
}
