// Every reconfiguration and scaling: why, what was predicted, and what was measured.

import { $, h } from "./dom.js";
import { bytes, count, exact, moment, percent } from "./format.js";

let latest = null;

export function setUp() {
  $("refused").addEventListener("change", () => draw(latest));
}

export function draw(now) {
  latest = now;
  const all = now?.decisions ?? [];
  const shown = all.filter((one) => $("refused").checked || !one.kind.startsWith("not "));
  const hidden = all.length - shown.length;
  if (!shown.length) {
    const why = hidden ? `${hidden} were refused; tick the box to see why.` : "None yet.";
    $("decided").replaceChildren(h("p", { class: "dim" }, why));
    return;
  }
  $("decided").replaceChildren(
    h("table", { class: "decisions" },
      h("thead", {}, h("tr", {}, ...["when", "what", "why", "predicted", "measured"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, ...shown.map(row))),
  );
}

function row(one) {
  const scaling = one.kind.endsWith("scaled");
  const cells = scaling ? [scalingWhat(one), scalingWhy(one), "–", measured(one, true)] : [what(one), why(one), predicted(one), measured(one, false)];
  const named = ["what", "why", "predicted", "measured"];
  return h("tr", { class: one.kind.startsWith("not ") ? "not" : "" },
    h("td", { "data-name": "when" }, moment(one.time), h("span", { class: "dim" }, ` batch ${one.batch}`)),
    ...cells.map((cell, i) => h("td", { "data-name": named[i] }, cell)));
}

const what = (one) => h("span", {}, h("b", {}, one.adopted ? "◆ Reconfigured" : "Not reconfigured"), one.forecast ? `: ${exact(one.forecast.moved)} keys` : "");
// the first tables are taken whatever their forecast says, since that rests on a few batches
const why = (one) => one.error ?? (one.forecast ? `${one.adopted && !one.forecast.pays ? "taken in any case; " : ""}${one.forecast.why}` : "–");

function predicted(one) {
  const f = one.forecast;
  if (!f) return "–";
  const gain = f.gain > 0 ? `, saves ${bytes(f.gain)} a batch` : "";
  return `of the latest rows ${percent(f.locality_now)} → ${percent(f.locality_then)} stay${gain}`;
}

const ENOUGH = 3; // batches after a scaling: the first ones do its work, too

function measured(one, scaling) {
  const { before, after } = one;
  if (!after || (scaling && after.batches < ENOUGH)) return one.kind.startsWith("not ") ? "–" : "not known yet";
  const parts = [];
  if (after.locality !== null) parts.push(`${before ? `${percent(before.locality)} → ` : ""}${percent(after.locality)} stay`);
  if (scaling) parts.push(`${before ? `${count(before.rows_per_s)} → ` : ""}${count(after.rows_per_s)} rows/s came in`);
  parts.push(`over ${count(after.batches)} ${after.batches === 1 ? "batch" : "batches"}`);
  return parts.join(", ");
}

function scalingWhat(one) {
  if (one.refused) return h("b", {}, `Not scaled ${one.operation}`);
  return h("span", {}, h("b", {}, `▲ Scaled ${one.operation ?? ""}`), `: ${one.from} → ${one.to} servers, ${exact(one.moved_keys)} keys moved`);
}

function scalingWhy(one) {
  if (one.refused) return one.refused;
  if (!one.why) return "–";
  return h("details", {}, h("summary", {}, `${one.strategy}'s reasons`), h("pre", {}, one.why));
}

