// The stack trie as an ARIA tree: one tab stop, arrow keys walk and fold, Enter follows the compile.
argand.ready((main) => {
  const tree = main.querySelector('[role="tree"]');
  if (!tree) return;
  const items = () => [...tree.querySelectorAll('[role="treeitem"]')].filter((item) => !item.parentElement.closest('[aria-expanded="false"]'));
  const fold = (item, open) => item.hasAttribute("aria-expanded") && item.setAttribute("aria-expanded", String(open));
  const focus = (item) => {
    if (!item) return;
    const old = tree.querySelector('[role="treeitem"][tabindex="0"]');
    if (old) old.tabIndex = -1;
    item.tabIndex = 0;
    item.focus();
  };
  const first = tree.querySelector('[role="treeitem"]');
  if (first) first.tabIndex = 0;
  tree.addEventListener("click", (event) => {
    const item = event.target.closest('[role="treeitem"]');
    if (!item || event.target.closest("a")) return;
    if (event.target.closest(".fold")) fold(item, item.getAttribute("aria-expanded") === "false");
    focus(item);
  });
  tree.addEventListener("keydown", (event) => {
    const item = event.target.closest('[role="treeitem"]');
    if (!item || event.ctrlKey || event.metaKey || event.altKey) return;
    const all = items();
    const at = all.indexOf(item);
    const state = item.getAttribute("aria-expanded");
    const moves = {
      ArrowDown: () => focus(all[at + 1]),
      ArrowUp: () => focus(all[at - 1]),
      Home: () => focus(all[0]),
      End: () => focus(all[all.length - 1]),
      ArrowRight: () => (state === "false" ? fold(item, true) : state === "true" && focus(item.querySelector('[role="treeitem"]'))),
      ArrowLeft: () => (state === "true" ? fold(item, false) : focus(item.parentElement.closest('[role="treeitem"]'))),
      "*": () => tree.querySelectorAll("[aria-expanded]").forEach((one) => fold(one, true)),
      Enter: () => { const link = item.querySelector(":scope > .row a"); if (link) link.click(); else fold(item, state === "false"); },
      " ": () => fold(item, state === "false"),
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    moves[event.key]();
  });
  for (const button of main.querySelectorAll("button[data-trie]")) {
    button.addEventListener("click", () => tree.querySelectorAll("[aria-expanded]").forEach((one) => fold(one, button.dataset.trie === "expand")));
  }
});
