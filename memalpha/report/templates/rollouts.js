"use strict";
// Shows rollouts of a run: from this file, or from `memalpha watch`, which also tells of new steps.
(() => {
  const section = document.getElementById("rollouts");
  const live = section.dataset.live === "yes";
  const at = (id) => document.getElementById(id);
  const [stepBox, taskBox, words, failed, follow] = ["step", "task", "filter", "failed", "follow"].map(at);
  const data = new Map();
  let steps = [];
  let current = null; // {step, tasks, rollouts}
  let chosen = { first: null, second: null }; // keys of rollouts
  let latest = 0; // number of the newest request: an older answer that comes later is dropped

  // Returns an element; children that are no elements become text.
  function make(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
  }
  const key = (rollout) => `${rollout.role}:${rollout.rollout}`;
  const signed = (value, digits = 2) => (value === null || value === undefined ? "–" : (value < 0 ? "−" : "+") + Math.abs(value).toFixed(digits));
  const isFailed = (code) => !["inserted", "updated", "deleted", "core_updated", "skipped", "duplicate"].includes(code);
  const ofTask = () => current.rollouts.filter((rollout) => rollout.task === taskBox.value);
  const chosenTask = () => current.tasks.find((task) => task.task === taskBox.value) || {};

  function matches(rollout) {
    const needles = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = needles.length ? JSON.stringify([rollout.turns, rollout.memory, rollout.answers]).toLowerCase() : "";
    const failing = !failed.checked || rollout.turns.some((turn) => turn.results.some(isFailed));
    return failing && needles.every((needle) => text.includes(needle));
  }

  // Applies a turn's changes to a memory: a map from id to content.
  function apply(memory, turn) {
    for (const change of turn.changes || []) {
      if (!change) continue;
      const [id, , content] = change;
      if (content === null) memory.delete(id);
      else memory.set(id, content);
    }
  }

  // Returns the rollout of the same group after whose reply to chunk `index` the next chunk was read.
  function writerOf(rollout, index) {
    if (!rollout.went_on) return rollout;
    return ofTask().find((other) => other.role === rollout.role && other.went_on && other.went_on[index]);
  }

  // Says before and after a reply of a chunk group that another reply's memory went on.
  function groupNotes(rollout, index) {
    const notes = [];
    const [before, after] = [index - 1, index].map((number) => {
      const isKnown = rollout.went_on && number >= 0 && number < rollout.went_on.length;
      const writer = isKnown ? writerOf(rollout, number) : rollout;
      return writer === rollout ? null : writer ? `the memory of rollout ${writer.rollout}` : "another reply's memory";
    });
    if (before) notes.push(`This chunk was read after ${before}, not after this rollout's own.`);
    if (after) notes.push(`The next chunk was read after ${after}: what this reply changed ends here.`);
    return notes.map((note) => make("p", { class: "soft" }, note));
  }

  // Returns the memory that a rollout read its turn `index` with. In a chunk group the group's next chunk is read after
  // one of its replies (`went_on`).
  function memoryBefore(rollout, index) {
    const memory = new Map();
    for (let number = 0; number < index; number += 1) {
      const writer = writerOf(rollout, number);
      if (writer && writer.turns[number]) apply(memory, writer.turns[number]);
    }
    return memory;
  }

  function callList(turn) {
    const list = make("ul", { class: "calls" });
    turn.results.forEach((code, index) => {
      const item = make("li", {}, make("span", { class: `tag ${isFailed(code) ? "no" : "ok"}` }, code.replace(/_/g, " ")));
      const change = (turn.changes || [])[index];
      if (change) {
        const [id, before, content] = change;
        item.append(make("code", {}, id || "core memory"), " ");
        item.append(code === "updated" || code === "core_updated" ? `${before || ""} → ${content}` : content ?? before ?? "");
      }
      if (turn.credit) item.append(" ", creditOf(turn, index));
      list.append(item);
    });
    if (!turn.results.length) list.append(make("li", { class: "soft" }, "no call"));
    if (turn.credit) {
      list.append(make("li", { class: "soft" }, "ending the reply ", creditOf(turn, turn.credit.length - 1)));
    }
    return list;
  }

  function creditOf(turn, index) {
    const value = turn.credit[index];
    const sources = ((turn.credit_from || [])[index] || []).map(([question, part]) => `${signed(part)} ${textOf(question)}`);
    const chip = make("span", { class: `credit ${value > 0 ? "yes" : value < 0 ? "nope" : ""}` }, `credit ${signed(value)}`);
    return sources.length ? make("span", {}, chip, make("span", { class: "soft" }, ` ${sources.join("; ")}`)) : chip;
  }

  function textOf(id) {
    const question = (chosenTask().questions || []).find((item) => item.id === id);
    return question ? question.question : id;
  }

  function memoryList(rollout, index) {
    const before = memoryBefore(rollout, index);
    const after = new Map(before);
    apply(after, rollout.turns[index]);
    const list = make("ul", { class: "memory" });
    for (const [id, content] of after) {
      const mark = !before.has(id) ? "new" : before.get(id) !== content ? "changed" : "";
      list.append(make("li", {}, mark && make("span", { class: "tag" }, mark), make("code", {}, id || "core"), ` ${content}`));
    }
    for (const [id, content] of before) {
      if (!after.has(id)) list.append(make("li", { class: "deleted" }, make("code", {}, id), ` ${content}`));
    }
    if (!list.childElementCount) list.append(make("li", { class: "soft" }, "empty"));
    return list;
  }

  function turnCard(rollout, index) {
    const turn = rollout.turns[index];
    if (!turn) return make("div", { class: "card soft" }, "no turn");
    const reply = make("pre", { "data-chunk": turn.chunk, "data-rollout": key(rollout) }, turn.text);
    const parts = Object.entries(rollout.components).map(([name, values]) => `${name} ${values[index] === undefined ? "–" : values[index].toFixed(2)}`);
    return make("div", { class: "card" },
      make("p", { class: "soft" }, `rollout ${rollout.rollout}${rollout.role === "attempt" ? "" : `, ${rollout.role}`} · advantage ${signed(turn.advantage)}${parts.length ? ` · ${parts.join(" · ")}` : ""}`),
      reply, callList(turn),
      rollout.memory ? make("details", { open: "" }, make("summary", {}, "memory after this part"), memoryList(rollout, index), ...groupNotes(rollout, index)) : null);
  }

  // Says after which part the words of an answer stood in the memory, and where they were lost.
  function trace(rollout, question) {
    const values = question.answers.map((answer) => String(answer).toLowerCase()).filter(Boolean);
    const holds = (memory) => [...memory.values()].some((content) => values.some((value) => content.toLowerCase().includes(value)));
    const events = [];
    let held = false;
    rollout.turns.forEach((turn, index) => {
      if (turn.chunk > question.chunk || !values.length) return;
      const memory = memoryBefore(rollout, index);
      apply(memory, turn);
      if (holds(memory) !== held) events.push([held ? "lost" : "written", turn.chunk]);
      held = holds(memory);
    });
    return events;
  }

  function questionTable(rollouts) {
    const questions = chosenTask().questions || [];
    if (!questions.length || !rollouts.some((rollout) => (rollout.answers || []).length)) return null;
    const head = make("tr", {}, make("th", {}, "question"), make("th", {}, "right answer"));
    for (const rollout of rollouts) head.append(make("th", {}, `rollout ${rollout.rollout}`));
    const table = make("table", {}, head);
    questions.forEach((question, index) => {
      const row = make("tr", {},
        make("td", {}, question.question, make("br"), make("span", { class: "soft" }, `after part ${question.chunk + 1}`)),
        make("td", {}, question.answers.join(" or ") || "not known"));
      for (const rollout of rollouts) {
        const answer = (rollout.answers || [])[index];
        const cell = make("td", {});
        if (answer) {
          const isRight = answer[2] >= 0.5;
          cell.append(make("span", { class: isRight ? "yes" : "nope" }, `${isRight ? "✓" : "✗"} ${answer[1] || "unknown"}`), make("br"));
          if (answer[3] === "conflict") {
            cell.append(make("span", { class: "soft" }, "conflict: two entries give this slot different values"), make("br"));
          }
        }
        for (const [what, chunk] of trace(rollout, question)) {
          cell.append(make("a", { href: `#part-${chunk}`, class: "jump", "data-chunk": chunk }, `${what} in part ${chunk + 1}`), " ");
        }
        row.append(cell);
      }
      table.append(row);
    });
    return make("div", {}, make("h3", { class: "part" }, "The questions"), make("div", { class: "card scroll" }, table));
  }

  function show() {
    const rollouts = ofTask();
    const first = rollouts.find((rollout) => key(rollout) === chosen.first) || rollouts.find(matches) || rollouts[0];
    const second = rollouts.find((rollout) => key(rollout) === chosen.second && rollout !== first);
    chosen = { first: first ? key(first) : null, second: second ? key(second) : null };
    const shown = [first, second].filter(Boolean);
    at("choice").replaceChildren(...rollouts.map((rollout) => {
      const pressed = shown.includes(rollout);
      const button = make("button", { type: "button", "aria-pressed": pressed, class: matches(rollout) ? "" : "dim" },
        `${rollout.role === "attempt" ? "" : `${rollout.role} `}${rollout.rollout}`, " ", make("span", { class: "soft" }, rollout.reward === null ? "–" : rollout.reward.toFixed(2)));
      button.addEventListener("click", (event) => choose(key(rollout), event.shiftKey));
      return button;
    }));
    const body = at("rollout");
    body.replaceChildren();
    if (!first) return;
    const chunks = chosenTask().chunks || [];
    if (chosenTask().prompt) body.append(make("pre", {}, chosenTask().prompt));
    const count = Math.max(chunks.length, ...shown.map((rollout) => rollout.turns.length));
    for (let index = 0; index < count; index += 1) {
      const chunk = chunks[index];
      if (chunk) {
        body.append(make("h3", { class: "part", id: `part-${index}` }, `Part ${index + 1} `, make("span", { class: "soft" }, chunk.timestamp || "")), make("pre", {}, chunk.text));
      }
      body.append(make("div", { class: shown.length > 1 ? "two" : "" }, ...shown.map((rollout) => turnCard(rollout, index))));
    }
    const table = questionTable(shown);
    if (table) body.append(table);
    const found = current.rollouts.filter(matches).length;
    at("rollouts-state").textContent = `${found} of ${current.rollouts.length} rollouts of this step${found === current.rollouts.length ? "" : " match"}; a second one beside it: Shift and click, or c`;
    if (live) shown.forEach(shade);
    const parts = { step: current.step, task: taskBox.value, rollout: chosen.first };
    if (chosen.second) parts.with = chosen.second;
    history.replaceState(null, "", `#${new URLSearchParams(parts)}`);
  }

  // Shades the tokens of a reply by their log-prob, where the run keeps them.
  async function shade(rollout) {
    const step = current.step;
    const query = new URLSearchParams({ task: rollout.task, rollout: rollout.rollout, role: rollout.role });
    const response = await fetch(`rollouts/${step}/tokens?${query}`);
    if (!response.ok || current.step !== step) return;
    for (const turn of await response.json()) {
      const reply = [...document.querySelectorAll("#rollout pre[data-chunk]")]
        .find((node) => node.dataset.chunk === String(turn.chunk) && node.dataset.rollout === key(rollout));
      if (!reply) continue;
      reply.replaceChildren(...turn.texts.map((text, index) => {
        const token = make("span", { title: `log-prob ${turn.logprobs[index].toFixed(3)}` }, text);
        token.style.setProperty("--doubt", `${Math.min(70, Math.round(-20 * turn.logprobs[index]))}%`);
        token.className = "token";
        return token;
      }));
    }
  }

  function choose(which, beside) {
    chosen = beside && which !== chosen.first ? { ...chosen, second: which } : { first: which, second: null };
    show();
  }

  async function load(step, task) {
    const request = (latest += 1);
    if (!data.has(step)) {
      const response = await fetch(`rollouts/${step}`);
      if (!response.ok) {
        at("rollouts-state").textContent = await response.text();
        return;
      }
      const loaded = await response.json();
      if (data.size > 8) data.delete(data.keys().next().value);
      data.set(step, loaded);
    }
    if (request !== latest) return;
    current = data.get(step);
    stepBox.value = String(step);
    const tasks = [...new Set(current.rollouts.map((rollout) => rollout.task))];
    const titles = new Map(current.tasks.map((task) => [task.task, task.title]));
    const label = (name) => (titles.get(name) ? `${titles.get(name)} (${name})` : name);
    taskBox.replaceChildren(...tasks.map((name) => make("option", { value: name }, label(name))));
    taskBox.value = tasks.includes(task) ? task : tasks[0];
    show();
  }

  function setSteps(found) {
    if (found.length === steps.length && found.every((step, index) => step === steps[index])) return false;
    steps = found;
    stepBox.replaceChildren(...steps.map((step) => make("option", { value: step }, String(step + 1))));
    if (current) stepBox.value = String(current.step);
    section.querySelector(".picks").hidden = !steps.length;
    return true;
  }

  function move(by) {
    const next = steps[steps.indexOf(current.step) + by];
    if (next === undefined) return;
    if (follow) follow.checked = false;
    load(next, taskBox.value);
  }

  function other(by, beside) {
    const keys = ofTask().filter(matches).map(key);
    const from = beside && chosen.second ? chosen.second : chosen.first;
    const next = keys[(keys.indexOf(from) + by + keys.length) % keys.length];
    if (next) choose(next, beside);
  }

  stepBox.addEventListener("change", () => { if (follow) follow.checked = false; load(Number(stepBox.value), taskBox.value); });
  taskBox.addEventListener("change", () => { chosen = { first: null, second: null }; show(); });
  for (const box of [words, failed]) box.addEventListener("input", () => current && show());
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches("input[type=search], textarea, select");
    if (event.key === "Escape" && typing) event.target.blur();
    if (typing || event.ctrlKey || event.metaKey || event.altKey || !current) return;
    const actions = {
      ArrowLeft: () => move(-1), ArrowRight: () => move(1), j: () => other(1), k: () => other(-1), c: () => other(1, true),
      t: () => { taskBox.selectedIndex = (taskBox.selectedIndex + 1) % taskBox.length; taskBox.dispatchEvent(new Event("change")); },
      "/": () => words.focus(),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  });
  document.addEventListener("click", (event) => {
    if (!event.target.matches("a.jump")) return;
    event.preventDefault(); // the address stays that of the rollout
    at(`part-${event.target.dataset.chunk}`)?.scrollIntoView();
  });

  const asked = new URLSearchParams(location.hash.slice(1));
  const askedStep = asked.has("step") ? Number(asked.get("step")) : null;
  chosen = { first: asked.get("rollout"), second: asked.get("with") };
  const start = () => load(steps.includes(askedStep) ? askedStep : steps[steps.length - 1], asked.get("task"));
  if (!live) {
    for (const step of JSON.parse(at("rollouts-data").textContent)) data.set(step.step, step);
    setSteps([...data.keys()]);
    if (steps.length) start();
    return;
  }

  if (askedStep !== null) follow.checked = false;
  const progress = at("progress");
  const events = new EventSource("events");
  events.addEventListener("message", async (event) => {
    const state = JSON.parse(event.data);
    progress.textContent = state.text;
    const isNew = setSteps(state.rollouts);
    if (!current && steps.length) start();
    else if (isNew && follow.checked) load(steps[steps.length - 1], taskBox.value);
    const isStopNew = state.stopped !== (section.dataset.stopped === "yes");
    if (isStopNew || (state.finished && section.dataset.finished !== "yes")) {
      location.reload(); // the top of the page has the result now, or why there is none
      return;
    }
    const response = await fetch("training");
    if (!response.ok) return;
    const fragment = new DOMParser().parseFromString(await response.text(), "text/html");
    at("training").replaceChildren(...fragment.body.childNodes);
  });
  events.addEventListener("error", () => { progress.textContent = "no connection to memalpha watch: it was stopped, or the machine sleeps"; });
})();
