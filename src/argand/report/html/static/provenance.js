// Side by side provenance: what belongs together lights up together in all four panes.
argand.ready((main) => {
  const panes = main.querySelector("#provenance");
  if (!panes) return;
  const says = main.querySelector("#prov-says");
  const names = JSON.parse(main.querySelector("#prov-nodes").textContent);
  const lines = [...panes.querySelectorAll(".p")];
  const boxes = [...panes.querySelectorAll(".lines")].filter((box) => box.querySelector(".p"));
  const nodes = new Map(lines.map((line) => [line, line.dataset.n.split(" ").map(Number)]));
  const byNode = new Map();
  for (const [line, list] of nodes) {
    for (const node of list) {
      if (!byNode.has(node)) byNode.set(node, []);
      byNode.get(node).push(line);
    }
  }
  let lit = [], pinned = null, self = null;

  const light = (line) => {
    for (const old of lit) old.classList.remove("lit", "self");
    for (const old of lit) old.setAttribute("aria-selected", "false");
    lit = [];
    self = line;
    if (!line) { says.textContent = "\u00a0"; return; }
    const related = new Set();
    for (const node of nodes.get(line)) for (const other of byNode.get(node)) related.add(other);
    lit = [...related];
    for (const other of lit) other.classList.add("lit");
    for (const other of lit) other.setAttribute("aria-selected", "true");
    line.classList.add("self");
    for (const box of boxes) {
      if (box.contains(line)) continue;
      const first = lit.find((other) => box.contains(other));
      if (!first) continue;
      const top = first.offsetTop - box.offsetTop;
      if (top < box.scrollTop || top + first.offsetHeight > box.scrollTop + box.clientHeight * 0.85) box.scrollTop = Math.max(0, top - box.clientHeight / 4);
    }
    const list = nodes.get(line).map((node) => names[node]);
    const count = (key) => lit.filter((other) => other.parentElement.dataset.pane === key).length;
    says.textContent = `${list.slice(0, 6).join(", ")}${list.length > 6 ? ` and ${list.length - 6} more nodes` : ""} · your lines: ${count("user")} · nodes: ${count("fx")} · loop lines: ${count("loop")} · kernel lines: ${count("kernel")}`;
  };
  const pin = (line) => {
    pinned = pinned === line ? null : line;
    panes.classList.toggle("pinned", Boolean(pinned));
    light(line);
  };
  panes.addEventListener("mouseover", (event) => {
    const line = event.target.closest(".p");
    if (line && !pinned && line !== self) light(line);
  });
  panes.addEventListener("mouseleave", () => { if (!pinned) light(null); });
  panes.addEventListener("click", (event) => {
    const line = event.target.closest(".p");
    if (line) { focus(line); pin(line); }
  });
  const focus = (line) => {
    if (!line) return;
    const old = line.parentElement.querySelector('.p[tabindex="0"]');
    if (old) old.tabIndex = -1;
    line.tabIndex = 0;
    line.focus();
    if (!pinned) light(line);
  };
  panes.addEventListener("focusin", (event) => { if (event.target.matches(".p") && !pinned && event.target !== self) light(event.target); });
  panes.addEventListener("keydown", (event) => {
    const line = event.target.closest(".p");
    if (!line || event.ctrlKey || event.metaKey || event.altKey) return;
    const all = [...line.parentElement.querySelectorAll(".p")], at = all.indexOf(line);
    const sideways = (step) => {
      const box = boxes[boxes.indexOf(line.parentElement) + step];
      if (!box) return;
      focus(lit.find((other) => box.contains(other)) || box.querySelector(".p"));
    };
    const moves = {
      ArrowDown: () => focus(all[at + 1]),
      ArrowUp: () => focus(all[at - 1]),
      Home: () => focus(all[0]),
      End: () => focus(all[all.length - 1]),
      ArrowRight: () => sideways(1),
      ArrowLeft: () => sideways(-1),
      Enter: () => pin(line),
      " ": () => pin(line),
      Escape: () => { pinned = null; panes.classList.remove("pinned"); light(null); },
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    moves[event.key]();
  });
  for (const box of boxes) box.querySelector(".p").tabIndex = 0;
});
