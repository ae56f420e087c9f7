// The page: one stream of events, and every section draws what it says.

import { $, h } from "./dom.js";
import { ago, bytes, count, exact, moment, percent, seconds } from "./format.js";
import * as decisions from "./decisions.js";
import * as flow from "./flow.js";
import * as keys from "./keys.js";
import * as lines from "./lines.js";
import * as servers from "./servers.js";
import * as steer from "./steer.js";
import * as toggle from "./toggle.js";

const MARKS = { good: "✓", warn: "!", bad: "✕", idle: "■" };
let now = null, seen = null;

function tile(name, value, note, id) {
  return h("div", { class: "tile", id }, h("span", { class: "dim" }, name), h("b", {}, value), h("small", { class: "dim" }, note));
}

function tiles() {
  const { steering } = now;
  const before = steering.since ? steering.before : null;
  const stayed = now.locality === null ? "one operator" : before ? `${percent(before)} before steering` : `${percent(now.by_hash)} by chance`;
  const p99 = Math.max(0, ...[...Object.values(now.sinks), ...Object.values(now.operators).map((op) => op.latency)].map((age) => age?.p99 ?? 0));
  const state = Object.values(now.operators).reduce((sum, op) => sum + (op.state_bytes ?? 0), 0);
  const known = Object.values(now.operators).reduce((sum, op) => sum + (op.keys ?? 0), 0);
  $("tiles").replaceChildren(
    tile("rows per second", count(now.rows_per_s), `${exact(now.rows)} in batch ${now.batch}`, "tile-rows"),
    tile("stayed on their server", percent(now.locality), stayed, "tile-locality"),
    tile("rows not sent", steering.since ? count(steering.kept_rows) : "–", steering.since ? `more than by chance, since batch ${steering.first}` : "homes are not learnt", "tile-kept"),
    tile("latency p99", seconds(p99), `lag ${seconds(now.lag)}`, "tile-latency"),
    tile("busy", percent(now.utilisation), `${now.servers_count} servers, ${bytes(now.bytes_exchanged)} sent`, "tile-busy"),
    tile("state", bytes(state), `${exact(known)} keys`, "tile-state"),
  );
}

function summary() {
  const speed = `${count(now.rows_per_s)} rows/s on ${now.servers_count} ${now.servers_count === 1 ? "server" : "servers"}, which are ${percent(now.utilisation)} busy`;
  const { before, since } = now.steering;
  if (before === null || since === null) return `${speed}.`;
  return `${speed}. Steering keeps ${percent(since)} of the rows on their server; before it, ${percent(before)} stayed.`;
}

function header() {
  const { state, text } = now.status;
  $("name").textContent = now.checkpoint.split("/").slice(-1)[0];
  $("name").title = now.checkpoint;
  $("all").hidden = !now.overview;
  document.title = `${state} · ${now.checkpoint.split("/").slice(-1)[0]} · Weir`;
  $("status").textContent = now.batch === null ? state : `${state === "gone" ? "stopped" : state} · batch ${now.batch}`;
  $("status").title = text ?? "";
  $("status").className = `pill ${state.replace(" ", "-")}`;
  $("health").className = `health ${now.health.level}`;
  $("health").querySelector(".mark").textContent = MARKS[now.health.level];
  $("verdict").textContent = now.health.text;
  const details = now.health.level === "good" && now.batch !== null ? [summary()] : now.health.details;
  $("details").replaceChildren(...details.slice(0, 5).map((text) => h("li", {}, text)));
  $("where").textContent = `${now.checkpoint} · ${now.mode} run · begun ${moment(now.created)}`;
}

// Draws one part of the page; if that fails, the others are drawn all the same, and the part says so.
function part(id, drawing) {
  $(id).querySelector(".broken")?.remove();
  try {
    drawing();
  } catch (error) {
    console.error(error);
    $(id).append(h("p", { class: "broken" }, `This part of the page could not be drawn (${error.message}). Please report it.`));
  }
}

function draw() {
  part("health", header);
  part("steer", () => steer.setUp(now.control));
  if (now.batch === null) return;
  part("tiles", tiles);
  part("flow", () => flow.draw(now));
  part("servers", () => servers.draw(now));
  part("decisions", () => decisions.draw(now));
  if (seen !== now.batch && lines.due(now.time)) lines.load();
  keys.hottest(now.batch);
  seen = now.batch;
}

// Says when everything has been drawn for the first time, for those who measure.
const drawn = () => requestAnimationFrame(() => (document.documentElement.dataset.drawn = performance.now() / 1000));

let narrow = innerWidth < 700;
addEventListener("resize", () => {
  if (narrow !== innerWidth < 700 && now?.batch !== null && now) flow.draw(now);
  narrow = innerWidth < 700;
});
setInterval(() => {
  if (now?.time) $("status").title = `${now.status.text}; last batch ${ago(now.time)}`;
}, 5000);

flow.legend();
lines.setUp();
toggle.setUp(() => lines.recolour());
servers.setUp();
decisions.setUp();
keys.setUp();

const events = new EventSource("api/events");
const first = new Promise((resolve) => {
  events.addEventListener("now", (event) => {
    now = JSON.parse(event.data);
    draw();
    resolve();
  });
});
Promise.all([first, lines.load()]).then(drawn);
events.addEventListener("error", () => {
  $("status").textContent = "page out of touch";
  $("status").className = "pill failed";
});
