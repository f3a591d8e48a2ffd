// The report's frame: theme, links, deep links, filters; and, in a single-file report, the pages themselves.
// Nothing here makes HTML out of text: nodes are built, texts are set.
"use strict";
const argand = (window.argand = { inits: [], page: "index.html" });

argand.ready = (init) => argand.inits.push(init);
argand.start = () => {
  const main = document.getElementById("main");
  for (const init of argand.inits) init(main);
};
argand.make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};
argand.single = () => document.documentElement.hasAttribute("data-single");
argand.typing = (event) => /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey;

// ---------------------------------------------------------------- theme
(() => {
  const root = document.documentElement;
  let stored = null;
  try { stored = localStorage.getItem("argand-theme"); } catch { /* no storage for this page */ }
  if (stored === "dark" || stored === "light") root.dataset.theme = stored;
  document.addEventListener("click", (event) => {
    if (!event.target.closest("button.theme")) return;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("argand-theme", root.dataset.theme); } catch { /* lasts as long as the page */ }
  });
})();

// ---------------------------------------------------------------- query parameters travel along
argand.carried = (address) => {
  const given = new URLSearchParams(location.search);
  if (argand.single() || given.size === 0 || /^([a-z][a-z0-9+.-]*:|\/\/|#)/i.test(address)) return address;
  const [rest, hash] = address.split(/#(.*)/s);
  const [path, query] = rest.split(/\?(.*)/s);
  const merged = new URLSearchParams(query || "");
  for (const [key, value] of given) merged.set(key, value);
  return `${path}?${merged}${hash === undefined ? "" : "#" + hash}`;
};
argand.ready(() => {
  for (const link of document.querySelectorAll("a[href]")) {
    const address = link.getAttribute("href");
    const carried = argand.carried(address);
    if (carried !== address) link.setAttribute("href", carried);
  }
});

// ---------------------------------------------------------------- deep links
argand.aim = (hash) => {
  for (const old of document.querySelectorAll(".aim")) old.classList.remove("aim");
  let name = hash.replace(/^#/, "");
  try { name = decodeURIComponent(name); } catch { /* as it is */ }
  const target = name && document.getElementById(name);
  const elsewhere = document.getElementById("elsewhere"); // compiles that other pages list
  const listed = !target && elsewhere && JSON.parse(elsewhere.textContent)[name];
  if (listed) {
    if (argand.single()) argand.open(argand.page.replace(/[^/]*$/, listed), hash);
    else location.replace(argand.carried(listed) + hash);
    return;
  }
  if (!target || target.id === "main") return;
  for (let box = target.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
  if (target.matches("details")) target.open = true;
  target.classList.add("aim");
  target.scrollIntoView({ block: target.classList.contains("l") ? "center" : "start" });
  const focus = target.querySelector("summary") || target;
  if (focus.tabIndex < 0 && !focus.hasAttribute("tabindex")) focus.setAttribute("tabindex", "-1");
  focus.focus({ preventScroll: true });
};
window.addEventListener("hashchange", () => { if (!argand.single()) argand.aim(location.hash); });

document.addEventListener("click", (event) => {
  const line = event.target.closest && event.target.closest("pre.code .l");
  if (line && event.clientX - line.getBoundingClientRect().left < 70) {
    history.replaceState(null, "", argand.single() ? `#!${argand.page}#${line.id}` : `#${line.id}`);
    for (const old of document.querySelectorAll(".l.aim")) old.classList.remove("aim");
    line.classList.add("aim");
  }
});

// ---------------------------------------------------------------- buttons and filters
document.addEventListener("click", async (event) => {
  const button = event.target.closest && event.target.closest("button");
  if (!button) return;
  if (button.dataset.open) for (const box of document.querySelectorAll(button.dataset.open)) box.open = true;
  if (button.dataset.close) for (const box of document.querySelectorAll(button.dataset.close)) box.open = false;
  if (button.dataset.copy) {
    const text = document.querySelector(button.dataset.copy).textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(document.querySelector(button.dataset.copy));
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  }
});
document.addEventListener("input", (event) => {
  const input = event.target;
  if (input.dataset.filter) {
    const wanted = input.value.trim().toLowerCase();
    for (const box of document.querySelectorAll(`${input.dataset.filter} > details`)) {
      const about = [...box.querySelectorAll("summary > .id, summary > .fn, summary > .path")].map((part) => part.textContent).join(" ");
      let any = !wanted || about.toLowerCase().includes(wanted);
      const whole = any;
      for (const row of box.querySelectorAll(".artifacts li")) {
        row.hidden = !whole && !row.textContent.toLowerCase().includes(wanted);
        any ||= !row.hidden;
      }
      box.hidden = !any;
      if (wanted && any && !whole) box.open = true;
    }
  }
  if (input.dataset.find) argand.find(document.querySelector(input.dataset.find), input.value);
});
argand.find = (code, wanted) => {
  const word = wanted.trim().toLowerCase();
  const hits = [];
  for (const line of code.querySelectorAll(".l")) {
    const hit = word.length > 1 && line.textContent.toLowerCase().includes(word);
    line.classList.toggle("hit", hit);
    line.classList.remove("now");
    if (hit) hits.push(line);
  }
  argand.hits = { hits, at: -1 };
  argand.nextHit(1);
};
argand.nextHit = (step) => {
  const state = argand.hits;
  if (!state || !state.hits.length) return;
  if (state.hits[state.at]) state.hits[state.at].classList.remove("now");
  state.at = (state.at + step + state.hits.length) % state.hits.length;
  state.hits[state.at].classList.add("now");
  state.hits[state.at].scrollIntoView({ block: "center" });
};
document.addEventListener("keydown", (event) => {
  if (event.target.dataset && event.target.dataset.find && event.key === "Enter") {
    event.preventDefault();
    argand.nextHit(event.shiftKey ? -1 : 1);
  }
});
argand.ready((main) => { // a search result opens its page with the words that it was found by
  const input = main.querySelector("input[data-find]");
  const words = argand.wanted || sessionWords();
  argand.wanted = "";
  if (input && words) {
    input.value = words;
    argand.find(document.querySelector(input.dataset.find), words);
  }
  function sessionWords() {
    try {
      const stored = sessionStorage.getItem("argand-find");
      sessionStorage.removeItem("argand-find");
      return stored;
    } catch { return ""; }
  }
});

// ---------------------------------------------------------------- pages of a single-file report
argand.unpack = async (name) => {
  const block = document.getElementById(`file:${name}`);
  if (!block) return null;
  const bytes = Uint8Array.from(atob(block.textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).text();
};
argand.go = async (name, hash = "") => {
  const text = await argand.unpack(name);
  if (text === null) return false;
  const old = document.getElementById("main");
  let main;
  if (name.endsWith(".html")) {
    const page = new DOMParser().parseFromString(text, "text/html");
    main = document.importNode(page.getElementById("main"), true);
    document.title = page.title;
    const nav = page.querySelector("header.top nav");
    document.querySelector("header.top nav").replaceWith(document.importNode(nav, true));
  } else {
    main = argand.make("main", { id: "main", tabindex: "-1" });
    const back = argand.make("button", { type: "button" }, "Back");
    back.addEventListener("click", () => history.back());
    const pre = argand.make("pre", { class: "code" });
    pre.textContent = text;
    const address = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
    const save = argand.make("a", { class: "button", href: address, download: name.split("/").pop() }, "Save");
    main.append(argand.make("p", { class: "links" }, back, save), pre);
    document.title = name;
  }
  old.replaceWith(main);
  argand.page = name;
  document.body.dataset.base = "../".repeat(name.split("/").length - 1);
  argand.start();
  if (hash) argand.aim(hash);
  else window.scrollTo(0, 0);
  return true;
};
argand.resolve = (address) => {
  const url = new URL(address, `https://report.invalid/${argand.page}`);
  return url.origin === "https://report.invalid" ? [decodeURIComponent(url.pathname.slice(1)), url.hash] : null;
};
document.addEventListener("click", (event) => {
  const link = event.target.closest && event.target.closest("a[href]");
  if (!link || !argand.single() || event.ctrlKey || event.metaKey || link.href.startsWith("blob:")) return;
  const target = argand.resolve(link.getAttribute("href"));
  if (!target || link.classList.contains("skip")) return;
  event.preventDefault();
  argand.open(target[0], target[1]);
});
argand.open = (name, hash) => {
  history.pushState(null, "", `${location.search}#!${name}${hash}`);
  if (name === argand.page) argand.aim(hash);
  else argand.go(name, hash);
};
argand.fromAddress = () => {
  const place = /^#!([^#]*)(#.*)?$/.exec(location.hash);
  if (place) argand.go(decodeURIComponent(place[1]), place[2] || "");
  else if (argand.page !== "index.html" && !location.hash) argand.go("index.html");
  else argand.aim(location.hash);
};
window.addEventListener("popstate", () => { if (argand.single()) argand.fromAddress(); });

document.addEventListener("DOMContentLoaded", () => {
  argand.start();
  if (argand.single()) argand.fromAddress();
  else if (location.hash) argand.aim(location.hash);
});
