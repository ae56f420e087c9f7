// The hottest keys, and where a key lives.

import { $, get, h } from "./dom.js";
import { count } from "./format.js";

let batch = null, visible = false;

export function setUp() {
  $("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    find($("key-text").value);
  });
  // reading statistics costs the server something: only while somebody looks
  new IntersectionObserver((entries) => {
    visible = entries.some((entry) => entry.isIntersecting);
    if (visible) hottest(batch);
  }).observe($("keys"));
}

let shown = null;
export async function hottest(number) {
  batch = number;
  if (!visible || shown === number || number === null) return;
  shown = number;
  try {
    const keys = await get("api/keys");
    const names = Object.keys(keys);
    $("hottest").replaceChildren(
      ...(names.length ? names.map((name) => list(name, keys[name])) : [h("p", { class: "dim" }, "No keys counted yet. They are where homes are learnt, routing=weir.Locality(), a few batches after the start.")]),
    );
  } catch (error) {
    $("hottest").replaceChildren(h("p", { class: "dim" }, error.message));
  }
}

function list(name, keys) {
  const most = Math.max(...keys.map((key) => key.rows), 1);
  return h("section", {}, h("h3", {}, `Hottest of ${name}`),
    h("table", { class: "hot" }, h("thead", {}, h("tr", {}, ...["key", "recent rows", "", "server"].map((text, i) => h("th", { scope: "col", class: i % 2 ? "number" : null }, text)))),
      h("tbody", {}, ...keys.slice(0, 10).map((key) => {
        const bar = h("i", { class: "share" });
        bar.style.width = `${(100 * key.rows) / most}%`;
        return h("tr", {}, h("td", {}, h("button", { type: "button", class: "link", onclick: () => find(key.key) }, key.key)),
          h("td", { class: "number" }, count(key.rows)), h("td", { class: "bar-cell" }, bar), h("td", { class: "number" }, `${key.server}`));
      }))));
}

async function find(text) {
  $("key-text").value = text;
  if (!text) return;
  $("key-answer").replaceChildren(h("p", { class: "dim" }, "Looking …"));
  try {
    const homes = await get(`api/key?${new URLSearchParams({ key: text })}`);
    $("key-answer").replaceChildren(...(homes.length ? homes.map((home) => answer(text, home)) : [h("p", {}, `No operator has a key “${text}”.`)]));
  } catch (error) {
    $("key-answer").replaceChildren(h("p", { class: "alarm" }, error.message));
  }
}

function answer(text, home) {
  const where = home.servers.length > 1 ? `on servers ${home.servers.join(", ")}` : `on server ${home.servers[0]}`;
  const since = home.by === "table" ? `by the routing table, since batch ${home.since_batch}` : "by its hash";
  return h("article", { class: "home" },
    h("h3", {}, `${home.operator}: “${text}” lives ${where}`, h("span", { class: "dim" }, ` ${home.host ? `(${home.host}) ` : ""}${since}`)),
    home.affinity.length ? h("p", {}, "Seen with: ", ...home.affinity.flatMap((other, i) => [i ? ", " : "",
      h("button", { type: "button", class: "link", onclick: () => find(other.key) }, other.key),
      h("span", { class: "dim" }, ` ${other.operator}, server ${other.server}${home.servers.includes(other.server) ? " ✓" : ""}`)])) : null,
    h("table", { class: "state" }, h("thead", {}, h("tr", {}, ...Object.keys(home.state[0]).map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, ...home.state.map((row) => h("tr", {}, ...Object.values(row).map((value) => h("td", {}, show(value))))))));
}

const show = (value) => (value === null ? "null" : typeof value === "object" ? JSON.stringify(value) : `${value}`);
