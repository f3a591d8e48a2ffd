// Live mode: the server says when the trace has grown; the page is fetched again and swapped, its state kept.
document.addEventListener("DOMContentLoaded", () => {
  const address = document.querySelector('meta[name="argand-live"]');
  if (!address || !location.protocol.startsWith("http")) return;
  const badge = document.querySelector(".live");
  const events = new EventSource(address.content);
  const keys = (main, query) => [...main.querySelectorAll(query)];
  const stateOf = (main) => ({
    open: new Map(keys(main, "details[id]").map((box) => [box.id, box.open])),
    folded: new Set(keys(main, '[aria-expanded="false"] > .row').map((row) => row.textContent)),
    inputs: keys(main, "input").map((input) => input.value),
    scroll: [scrollX, scrollY],
  });
  const swap = async () => {
    const answer = await fetch(location.pathname + location.search, { cache: "no-store" });
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const old = document.getElementById("main");
    const main = document.importNode(page.getElementById("main"), true);
    const state = stateOf(old);
    for (const box of keys(main, "details[id]")) if (state.open.has(box.id)) box.open = state.open.get(box.id);
    for (const item of keys(main, "[aria-expanded]")) {
      const row = item.querySelector(":scope > .row");
      if (row && state.folded.has(row.textContent)) item.setAttribute("aria-expanded", "false");
    }
    keys(main, "input").forEach((input, n) => (input.value = state.inputs[n] || ""));
    old.replaceWith(main);
    document.querySelector("header.top nav").replaceWith(document.importNode(page.querySelector("header.top nav"), true));
    argand.forgetIndex();
    argand.start();
    scrollTo(...state.scroll);
  };
  let timer = null;
  events.addEventListener("changed", () => {
    if (badge) badge.classList.remove("off");
    if (document.querySelector("dialog[open]") || timer) return;
    if (document.activeElement && document.activeElement.closest("#provenance, #flame")) return;
    timer = setTimeout(() => { timer = null; swap(); }, 150);
  });
  events.addEventListener("error", () => badge && badge.classList.add("off"));
});
