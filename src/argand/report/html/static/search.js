// Search over everything, from an index that was made with the report and is loaded with the first search.
(() => {
  let dialog, input, list, says, index, vocabulary, chosen = 0;

  const load = () => {
    if (index) return Promise.resolve();
    const accept = () => {
      index = window.argandSearchIndex;
      vocabulary = Object.keys(index.words);
    };
    if (argand.single()) {
      const folder = argand.runFolder();
      return argand.unpack(`${folder}search-index.json`).then((text) => { window.argandSearchIndex = JSON.parse(text); accept(); index.folder = folder; });
    }
    return new Promise((resolve, reject) => {
      const script = argand.make("script", { src: `${document.body.dataset.base}search-index.js` });
      script.addEventListener("load", () => { accept(); resolve(); });
      script.addEventListener("error", () => reject(new Error("the search index cannot be loaded")));
      document.head.append(script);
    });
  };
  argand.runFolder = () => {
    const top = argand.page.split("/")[0];
    return document.getElementById(`file:${top}/search-index.json`) ? `${top}/` : "";
  };

  const find = (query) => {
    const terms = query.toLowerCase().split(/\s+/).filter(Boolean);
    if (!terms.length) return [];
    let scores = null;
    for (const term of terms) {
      const ofTerm = new Map();
      index.docs.forEach(([kind, title, detail], number) => {
        const at = title.toLowerCase().indexOf(term);
        if (at >= 0) ofTerm.set(number, at === 0 ? 12 : 8);
        else if (detail.toLowerCase().includes(term)) ofTerm.set(number, 5);
        else if (kind === term) ofTerm.set(number, 3);
      });
      if (term.length > 1) {
        for (const word of vocabulary) {
          if (!word.includes(term)) continue;
          const worth = word === term ? 4 : word.startsWith(term) ? 2 : 1;
          for (const number of index.words[word]) ofTerm.set(number, Math.max(ofTerm.get(number) || 0, worth));
        }
      }
      if (scores) {
        for (const [number, score] of scores) {
          if (ofTerm.has(number)) ofTerm.set(number, ofTerm.get(number) + score);
        }
        for (const number of [...ofTerm.keys()]) if (!scores.has(number)) ofTerm.delete(number);
      }
      scores = ofTerm;
    }
    const boost = { compile: 4, "graph break": 3, recompile: 3, "time span": 1, artifact: 0 };
    return [...scores].map(([number, score]) => [score + (boost[index.docs[number][0]] || 0), number]).sort((a, b) => b[0] - a[0] || a[1] - b[1]);
  };

  const marked = (text, query) => {
    const marked = document.createDocumentFragment();
    const term = query.toLowerCase().split(/\s+/).filter((t) => t && text.toLowerCase().includes(t))[0];
    const at = term ? text.toLowerCase().indexOf(term) : -1;
    if (at < 0) marked.append(text);
    else marked.append(text.slice(0, at), argand.make("mark", {}, text.slice(at, at + term.length)), text.slice(at + term.length));
    return marked;
  };

  const show = () => {
    const query = input.value.trim();
    const results = find(query);
    chosen = 0;
    list.replaceChildren(...results.slice(0, 60).map(([, number], position) => {
      const [kind, title, detail, address] = index.docs[number];
      const link = argand.make("a", { href: argand.carried(base() + address), tabindex: "-1" });
      link.append(argand.make("span", { class: "kind" }, kind), argand.make("span", { class: "t" }, marked(title, query)), argand.make("span", { class: "d" }, marked(detail, query)));
      link.addEventListener("click", () => { remember(kind, title, query); dialog.close(); });
      return argand.make("li", { role: "option", id: `result-${position}`, "aria-selected": String(position === 0) }, link);
    }));
    says.textContent = !query ? "Functions, files, artifacts, their contents, graph breaks, recompiles, time spans."
      : `${results.length || "No"} result${results.length === 1 ? "" : "s"}${results.length > 60 ? ", the best 60 shown" : ""}${index.truncated ? "; the index of a trace of this size is not complete" : ""}`;
    input.setAttribute("aria-activedescendant", results.length ? "result-0" : "");
  };
  const base = () => document.body.dataset.base + (index.folder && argand.single() ? index.folder : "");
  const remember = (kind, title, query) => {
    if (kind !== "artifact") return;
    const word = query.split(/\s+/).find((t) => t.length > 1 && !title.toLowerCase().includes(t.toLowerCase()) && t.toLowerCase() !== kind);
    if (!word) return;
    argand.wanted = word;
    try { sessionStorage.setItem("argand-find", word); } catch { /* found by eye then */ }
  };
  const choose = (step) => {
    const rows = [...list.children];
    if (!rows.length) return;
    rows[chosen].setAttribute("aria-selected", "false");
    chosen = (chosen + step + rows.length) % rows.length;
    rows[chosen].setAttribute("aria-selected", "true");
    rows[chosen].scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-activedescendant", rows[chosen].id);
  };

  const build = () => {
    input = argand.make("input", { type: "search", placeholder: "Search the report…", role: "combobox", "aria-label": "Search the report", "aria-expanded": "true", "aria-controls": "search-results", autocomplete: "off", spellcheck: "false" });
    list = argand.make("ol", { id: "search-results", role: "listbox", "aria-label": "Results" });
    says = argand.make("p", { "aria-live": "polite" }, "Loading…");
    dialog = argand.make("dialog", { class: "search", "aria-label": "Search" }, input, list, says);
    document.body.append(dialog);
    input.addEventListener("input", () => index && show());
    dialog.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { event.preventDefault(); dialog.close(); }
      if (event.key === "ArrowDown") { event.preventDefault(); choose(1); }
      if (event.key === "ArrowUp") { event.preventDefault(); choose(-1); }
      if (event.key === "Enter" && list.children[chosen]) { event.preventDefault(); list.children[chosen].querySelector("a").click(); }
    });
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  };
  argand.search = () => {
    if (!document.querySelector(".search-open")) return;
    if (!dialog) build();
    if (index && argand.single() && index.folder !== argand.runFolder()) index = null;
    if (!dialog.open) dialog.showModal();
    input.select();
    load().then(show, (error) => { says.textContent = error.message; });
  };
  argand.forgetIndex = () => { index = null; };
  document.addEventListener("click", (event) => { if (event.target.closest && event.target.closest(".search-open")) argand.search(); });
  document.addEventListener("keydown", (event) => {
    if ((event.key === "/" && !argand.typing(event)) || (event.key === "k" && (event.ctrlKey || event.metaKey))) {
      event.preventDefault();
      argand.search();
    }
  });
})();
