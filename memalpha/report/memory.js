"use strict";
// Shows and hides what the page holds already: texts are never made into markup.
(() => {
  const entries = [...document.querySelectorAll(".entry")].map((node) => ({
    node,
    versions: [...node.querySelectorAll("summary .version")].map((part) => ({
      part,
      from: Number(part.dataset.from),
      to: part.dataset.to === "" ? Infinity : Number(part.dataset.to),
      words: `${node.dataset.id} ${part.textContent}`.toLowerCase(),
    })),
  }));
  const texts = [...document.querySelectorAll(".core pre, .waiting li")];
  const moments = JSON.parse(document.getElementById("moments").textContent);
  const slider = document.getElementById("moment");
  const label = document.getElementById("moment-label");
  const search = document.getElementById("words");
  const ended = document.getElementById("ended");
  const found = document.getElementById("found");
  const first = Number(slider.min);
  const last = Number(slider.max);

  function show() {
    const position = Number(slider.value);
    const [time, text] = moments[position - first];
    const now = position === last ? "Now. " : "";
    label.textContent = `${now}Position ${position} of ${last}, ${time ? `${time}: ` : ""}${text}`;
    slider.setAttribute("aria-valuetext", label.textContent);
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let live = 0;
    let shown = 0;
    for (const { node, versions } of entries) {
      const begun = versions.filter((version) => version.from <= position);
      const version = begun[begun.length - 1];
      for (const each of versions) each.part.hidden = each !== version;
      const isLive = version !== undefined && position < version.to;
      const matches = version !== undefined && words.every((word) => version.words.includes(word));
      node.classList.toggle("ended", version !== undefined && !isLive);
      node.classList.toggle("changed", version !== undefined && (version.from === position || version.to === position));
      const changedNow = version !== undefined && version.to === position;
      node.hidden = !(version !== undefined && matches && (isLive || ended.checked || changedNow));
      live += isLive;
      shown += isLive && matches;
      for (const row of node.querySelectorAll("[data-row]")) row.hidden = Number(row.dataset.row) > position;
    }
    for (const text of texts) {
      const to = text.dataset.to === "" ? Infinity : Number(text.dataset.to);
      text.hidden = !(Number(text.dataset.from) <= position && position < to);
    }
    for (const section of document.querySelectorAll("section.category")) {
      section.hidden = !section.querySelector(".entry:not([hidden])");
    }
    found.textContent = words.length ? `${shown} of ${live} entries hold these words` : `${live} entries`;
  }

  function step(by) {
    slider.value = Math.min(last, Math.max(first, Number(slider.value) + by));
    show();
  }

  slider.addEventListener("input", show);
  search.addEventListener("input", show);
  ended.addEventListener("change", show);
  document.getElementById("back").addEventListener("click", () => step(-1));
  document.getElementById("forward").addEventListener("click", () => step(1));
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && event.target !== search) {
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
