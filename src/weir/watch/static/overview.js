// The overview of several queries: one row each, what needs somebody first.

import { $, get, h } from "./dom.js";
import { ago, count, percent, seconds } from "./format.js";
import * as toggle from "./toggle.js";

const EVERY = 2000; // milliseconds between two looks
const ORDER = { bad: 0, warn: 1, good: 2, idle: 3 };
const MARKS = { good: "✓", warn: "!", bad: "✕", idle: "■" };
const RUNS = ["running", "presumed running"];

const cell = (name, value, ...more) => h("td", { "data-name": name, class: "number" }, value, ...more);

function row(query) {
  const { health, status } = query;
  const runs = RUNS.includes(status.state);
  const state = status.state === "gone" ? "killed" : status.state;
  const alarms = { bad: [health.text, ...health.details], warn: health.details }[health.level] ?? [];
  const stayed = query.locality === null || query.locality === undefined
    ? h("span", { class: "dim" }, query.batch === null ? "–" : "one operator")
    : h("span", { title: `${percent(query.by_hash)} by chance` }, percent(query.locality), h("progress", { max: 1, value: query.locality, "aria-hidden": "true" }));
  return h("tr", { class: health.level, "data-query": query.name },
    h("th", { scope: "row" },
      h("span", { class: `mark ${health.level}`, "aria-hidden": "true" }, MARKS[health.level]),
      h("a", { href: `query/${encodeURIComponent(query.name)}/`, title: query.checkpoint }, query.name.replaceAll("~", "/"))),
    h("td", { "data-name": "status" }, h("span", { class: `pill ${status.state.replace(" ", "-")}`, title: status.text ?? "" }, state)),
    h("td", { "data-name": "alarms", class: "alarms" }, alarms.length ? h("ul", {}, alarms.slice(0, 3).map((text) => h("li", {}, text))) : h("span", { class: "dim" }, "none")),
    cell("rows/s", runs ? count(query.rows_per_s) : "–"),
    cell("lag", runs ? seconds(query.lag) : "–"),
    h("td", { "data-name": "stayed" }, stayed),
    cell("busy", runs ? percent(query.utilisation) : "–"),
    cell("servers", query.servers_count ?? "–"),
    cell("last batch", query.batch === null ? "none yet" : ago(query.time)));
}

function broken(one) {
  return h("tr", { class: "bad" },
    h("th", { scope: "row" }, h("span", { class: "mark bad", "aria-hidden": "true" }, MARKS.bad), one.name.replaceAll("~", "/")),
    h("td", {}, h("span", { class: "pill failed" }, "cannot be read")), h("td", { colspan: 7, class: "alarms" }, one.why));
}

function verdict(told) {
  const all = [...told.queries.map((query) => query.health.level), ...told.broken.map(() => "bad")];
  const of = (level) => all.filter((one) => one === level).length;
  const worst = Object.keys(ORDER).find((level) => of(level)) ?? "idle";
  const running = told.queries.filter((query) => RUNS.includes(query.status.state));
  const waiting = running.filter((query) => query.health.level === "idle").length;
  const said = [[of("bad"), "failed"], [of("warn"), "to look at"], [of("good"), "well"], [waiting, "waiting for rows"], [of("idle") - waiting, "stopped"]];
  const text = said.filter(([n]) => n).map(([n, what]) => `${n} ${what}`).join(", ");
  const rows = running.reduce((sum, query) => sum + (query.rows_per_s ?? 0), 0);
  $("health").className = `health ${worst}`;
  $("health").querySelector(".mark").textContent = MARKS[worst];
  $("verdict").textContent = `${all.length} ${all.length === 1 ? "query" : "queries"}: ${text}.`;
  $("details").replaceChildren(h("li", {}, `${running.length} running, ${count(rows)} rows/s together.`));
  $("status").textContent = worst === "bad" ? "alarm" : worst === "warn" ? "look at it" : "no alarms";
  $("status").className = `pill ${{ bad: "failed", warn: "warn", good: "running" }[worst] ?? ""}`;
  document.title = `${text} · Weir`;
}

function draw(told) {
  const queries = told.queries.toSorted((a, b) => ORDER[a.health.level] - ORDER[b.health.level] || a.name.localeCompare(b.name));
  const at = document.activeElement?.closest("tr")?.dataset.query;
  $("rows").replaceChildren(...told.broken.map(broken), ...queries.map(row));
  if (at) $("rows").querySelector(`[data-query="${CSS.escape(at)}"] a`)?.focus();
  verdict(told);
  $("name").textContent = $("where").textContent = told.place;
}

async function look() {
  try {
    draw(await get("api/now"));
    document.documentElement.dataset.drawn ??= performance.now() / 1000;
  } catch (error) {
    console.warn(error);
    $("status").textContent = "page out of touch";
    $("status").className = "pill failed";
  }
  setTimeout(look, EVERY);
}

toggle.setUp(() => {});
look();
