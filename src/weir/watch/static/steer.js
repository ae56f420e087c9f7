// Steering from the page: what would be done first, then, if wanted, the request.

import { $, h, post } from "./dom.js";

let made = false;

export function setUp(control) {
  $("steer").hidden = $("steer-link").hidden = !control;
  if (!control || made) return;
  made = true;
  const servers = h("input", { type: "number", id: "servers-asked", min: 1, value: 1 });
  const answer = h("div", { id: "steer-answer", "aria-live": "polite" });
  const say = (text, kind) => answer.replaceChildren(h("p", { class: kind }, text));

  const run = async (ask, text) => {
    say(`${text} … the query's next batches take it up`, "dim");
    try {
      const done = await post("api/steer", ask);
      if (done.state === "refused") say(`Refused: ${done.error}`, "alarm");
      else if (ask.operation === "reconfigure") say("A reconfiguration is being computed; it is adopted if it pays.", "good");
      else say(`Done: from ${done.from} to ${done.to} servers, ${done.moved_keys} keys moved with their state.`, "good");
    } catch (error) {
      say(`Refused: ${error.message}`, "alarm");
    }
  };
  const plan = async (operation) => {
    const ask = { operation, servers: Number(servers.value), share_slots: true };
    try {
      const told = await post("api/dry-run", ask);
      answer.replaceChildren(
        h("p", {}, `Would go from ${told.from} to ${told.to} servers. Nothing has changed yet.`),
        h("pre", {}, told.text),
        h("button", { type: "button", class: "primary", id: "do-it", onclick: () => run(ask, `Scaling ${operation}`) }, "Do it"),
        h("button", { type: "button", onclick: () => answer.replaceChildren() }, "Leave it"),
      );
    } catch (error) {
      say(error.message, "alarm");
    }
  };
  $("steering").append(
    h("p", { class: "dim" }, "Requests go through the checkpoint, as those of weir scale do."),
    h("div", { class: "controls" },
      h("button", { type: "button", id: "reconfigure", onclick: () => run({ operation: "reconfigure" }, "Asking for new homes") }, "Reconfigure"),
      h("label", {}, "servers ", servers),
      h("button", { type: "button", id: "scale-out", onclick: () => plan("out") }, "Add: show what it would do"),
      h("button", { type: "button", id: "scale-in", onclick: () => plan("in") }, "Remove: show what it would do")),
    answer,
  );
}
