"use strict";
// Shows and hides what the page holds already: texts are never made into markup.
(() => {
  const slider = document.getElementById("moment");
  const first = Number(slider.min);
  const last = Number(slider.max);
  const until = (node) => (node.dataset.to === "" ? Infinity : Number(node.dataset.to));
  const entries = [...document.querySelectorAll(".entry")].map((node) => {
    const versions = [...node.querySelectorAll("summary .version")].map((part) => ({
      part,
      from: Number(part.dataset.from),
      to: until(part),
      speaker: part.dataset.speaker,
      words: `${node.dataset.id} ${part.textContent}`.toLowerCase(),
    }));
    return { node, versions, mark: drawLife(node.querySelector(".life"), versions) };
  });
  const texts = [...document.querySelectorAll(".core pre, .waiting > li, .findings > li")];
  const moments = JSON.parse(document.getElementById("moments").textContent);
  const label = document.getElementById("moment-label");
  const search = document.getElementById("words");
  const speaker = document.getElementById("speaker");
  const ended = document.getElementById("ended");
  const found = document.getElementById("found");

  // Draws when an entry's versions held, from the first to the last position of the page.
  function drawLife(line, versions) {
    const share = (position) => (100 * (Math.min(position, last) - first)) / Math.max(1, last - first);
    for (const { from, to } of versions) {
      const bar = line.appendChild(document.createElement("i"));
      bar.style.left = `${share(Math.max(from, first))}%`;
      bar.style.right = `${100 - share(to)}%`;
    }
    const mark = line.appendChild(document.createElement("b"));
    return (position) => { mark.style.left = `${share(position)}%`; };
  }

  function show() {
    const position = Number(slider.value);
    const [time, text] = moments[position - first];
    const now = position === last ? "Now. " : "";
    label.textContent = `${now}Position ${position} of ${last}, ${time ? `${time}: ` : ""}${text}`;
    slider.setAttribute("aria-valuetext", label.textContent);
    document.body.classList.toggle("past", position !== last);
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const anybody = !speaker || speaker.selectedIndex === 0;
    let live = 0;
    let shown = 0;
    for (const { node, versions, mark } of entries) {
      const begun = versions.filter((version) => version.from <= position);
      const version = begun[begun.length - 1];
      for (const each of versions) each.part.hidden = each !== version;
      const isLive = version !== undefined && position < version.to;
      const matches = version !== undefined && words.every((word) => version.words.includes(word))
        && (anybody || `=${version.speaker}` === speaker.value);
      node.classList.toggle("ended", version !== undefined && !isLive);
      node.classList.toggle("changed", version !== undefined && (version.from === position || version.to === position));
      const changedNow = version !== undefined && version.to === position;
      node.hidden = !(version !== undefined && matches && (isLive || ended.checked || changedNow));
      mark(position);
      live += isLive;
      shown += isLive && matches;
      for (const row of node.querySelectorAll("[data-row]")) row.hidden = Number(row.dataset.row) > position;
    }
    for (const text of texts) {
      text.hidden = !(Number(text.dataset.from) <= position && position < until(text));
    }
    for (const section of document.querySelectorAll("section.category")) {
      section.hidden = !section.querySelector(".entry:not([hidden])");
    }
    for (const section of document.querySelectorAll(".concern")) {
      section.hidden = !section.querySelector("li:not([hidden])");
    }
    const entry = live === 1 ? "entry" : "entries";
    found.textContent = words.length ? `${shown} of ${live} ${entry} with these words`
      : anybody ? `${live} ${entry}` : `${shown} of ${live} ${entry}`;
  }

  function step(by) {
    slider.value = Math.min(last, Math.max(first, Number(slider.value) + by));
    show();
  }

  const typesText = (node) => node.matches("textarea, select, input:not([type=range]):not([type=checkbox])");
  slider.addEventListener("input", show);
  search.addEventListener("input", show);
  ended.addEventListener("change", show);
  if (speaker) speaker.addEventListener("change", show);
  document.getElementById("back").addEventListener("click", () => step(-1));
  document.getElementById("forward").addEventListener("click", () => step(1));
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !typesText(event.target)) {
      event.preventDefault();
      search.focus();
    } else if (event.key === "Escape" && event.target === search) {
      search.value = "";
      show();
    }
  });
  document.querySelector(".controls").hidden = false;
  show();
})();
