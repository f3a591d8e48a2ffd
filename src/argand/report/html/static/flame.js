// The flame graph of compile time: spans drawn top down, the time from left to right.
argand.ready((main) => {
  const box = main.querySelector("#flame");
  const source = main.querySelector("#flame-data");
  if (!box || !source) return;
  const data = JSON.parse(source.textContent);
  const says = main.querySelector("#flame-says");
  const pick = main.querySelector("#flame-id");
  const ROW = 19, AXIS = 22, LANE = 18, NS = "http://www.w3.org/2000/svg";
  const spans = data.spans.map(([name, start, length, depth, lane, id], number) => ({ name: data.names[name], start, length, depth, lane, id: data.ids[id], number }));
  const end = Math.max(1, ...spans.map((s) => s.start + s.length));
  const lanes = data.lanes.map((label, number) => ({ label, depth: 1 + Math.max(0, ...spans.filter((s) => s.lane === number).map((s) => s.depth)) }));
  let y = AXIS;
  for (const lane of lanes) {
    lane.y = y;
    y += lane.depth * ROW + LANE;
  }
  const height = y;
  let view = [0, end], past = [], here = null, wanted = "", only = "";

  const svg = (tag, attributes, text) => {
    const element = document.createElementNS(NS, tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const time = (us) => (us >= 1e6 ? `${(us / 1e6).toFixed(2)} s` : us >= 1e3 ? `${(us / 1e3).toFixed(us >= 1e5 ? 0 : 1)} ms` : `${Math.round(us)} µs`);
  const colour = (name) => {
    let hash = 7;
    for (const char of name) hash = (hash * 31 + char.charCodeAt(0)) >>> 0;
    return `hsl(${14 + (hash % 34)} ${78 + (hash >> 8) % 14}% ${67 + ((hash >> 4) % 14)}%)`;
  };
  const shown = (s) => (!wanted || s.name.toLowerCase().includes(wanted)) && (!only || s.id === only);

  const draw = () => {
    const width = Math.max(box.clientWidth - 2, 300);
    const scale = width / (view[1] - view[0]);
    const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    const axis = svg("g", { class: "axis" });
    const rough = (view[1] - view[0]) / 7;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((n) => n * unit >= rough) * unit;
    for (let at = Math.ceil(view[0] / step) * step; at < view[1]; at += step) {
      const x = (at - view[0]) * scale;
      axis.append(svg("line", { x1: x, x2: x, y1: 0, y2: height }), svg("text", { x: x + 3, y: 14 }, time(at)));
    }
    picture.append(axis);
    for (const lane of lanes) if (lanes.length > 1) picture.append(svg("text", { class: "lane", x: 4, y: lane.y + lane.depth * ROW + 12 }, `process/thread ${lane.label}`));
    for (const s of spans) {
      const x = (s.start - view[0]) * scale, w = s.length * scale;
      if (x > width || x + w < 0 || (w < 0.4 && s !== here)) continue;
      const left = Math.max(x, -2), right = Math.min(x + w, width + 2);
      const top = lanes[s.lane].y + s.depth * ROW;
      const group = svg("g", { class: `span${shown(s) ? "" : " off"}${s === here ? " here" : ""}`, "data-span": s.number });
      group.append(svg("rect", { x: left, y: top, width: Math.max(right - left, 0.7), height: ROW - 1, rx: 2, fill: colour(s.name) }));
      if (right - left > 34) {
        const room = Math.floor((right - left - 8) / 6.9);
        const label = s.id && s.depth === 0 ? `${s.name} [${s.id}]` : s.name;
        group.append(svg("text", { x: left + 4, y: top + 13 }, label.length > room ? label.slice(0, Math.max(room - 1, 1)) + "…" : label));
      }
      picture.append(group);
    }
    box.replaceChildren(picture);
  };
  const tell = (s) => {
    if (!s) { says.textContent = "\u00a0"; return; }
    const own = s.length - spans.filter((o) => o.lane === s.lane && o.depth === s.depth + 1 && o.start >= s.start && o.start + o.length <= s.start + s.length + 0.2).reduce((sum, o) => sum + o.length, 0);
    says.textContent = `${s.name}${s.id ? ` [${s.id}]` : ""}: ${time(s.length)}, own ${time(Math.max(own, 0))}, ${(100 * s.length / end).toFixed(1)} % of the trace, from ${time(s.start)}`;
  };
  const zoom = (from, to, keep = true) => {
    if (keep) past.push(view);
    const least = Math.max((to - from), 1);
    view = [Math.max(0, from), Math.min(end, Math.max(from, 0) + least)];
    if (view[1] - view[0] < 1) view = [Math.max(0, view[1] - 1), view[1]];
    box.dataset.view = view.map((v) => Math.round(v)).join("-");
    draw();
  };
  const select = (s) => {
    if (!s) return;
    here = s;
    if (s.start + s.length < view[0] || s.start > view[1]) {
      const size = view[1] - view[0];
      view = [Math.max(0, s.start - size / 4), Math.max(0, s.start - size / 4) + size];
    }
    draw();
    tell(s);
    const top = lanes[s.lane].y + s.depth * ROW;
    if (top < box.scrollTop || top + ROW > box.scrollTop + box.clientHeight) box.scrollTop = top - 40;
  };
  const inside = (s, o) => o.start >= s.start - 0.2 && o.start + o.length <= s.start + s.length + 0.2;
  const row = (s, depth) => spans.filter((o) => o.lane === s.lane && o.depth === depth);
  const moves = {
    ArrowRight: (s) => row(s, s.depth).find((o) => o.start > s.start && o !== s),
    ArrowLeft: (s) => row(s, s.depth).filter((o) => o.start < s.start).pop(),
    ArrowUp: (s) => row(s, s.depth - 1).find((o) => inside(o, s)) || spans.filter((o) => o.lane === s.lane - 1).pop(),
    ArrowDown: (s) => row(s, s.depth + 1).filter((o) => inside(s, o)).sort((a, b) => b.length - a.length)[0] || spans.find((o) => o.lane === s.lane + 1),
  };
  box.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const middle = here ? here.start + here.length / 2 : (view[0] + view[1]) / 2, size = view[1] - view[0];
    if (moves[event.key]) select(here ? moves[event.key](here) : spans[0]);
    else if (event.key === "Enter" && here) zoom(here.start, here.start + here.length);
    else if (event.key === "Escape" || event.key === "Backspace") { const back = past.pop(); if (back) zoom(...back, false); }
    else if (event.key === "+" || event.key === "=") zoom(middle - size / 4, middle + size / 4);
    else if (event.key === "-") zoom(middle - size, middle + size);
    else if (event.key === "Home") { past = []; zoom(0, end, false); }
    else return;
    event.preventDefault();
  });
  const at = (event) => { const group = event.target.closest && event.target.closest("[data-span]"); return group && spans[group.dataset.span]; };
  box.addEventListener("mousemove", (event) => tell(at(event) || here));
  box.addEventListener("click", (event) => {
    const s = at(event);
    if (!s) return;
    here = s;
    zoom(s.start, s.start + s.length);
    tell(s);
    box.focus();
  });
  box.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const share = (event.clientX - box.getBoundingClientRect().left) / box.clientWidth;
    const size = (view[1] - view[0]) * (event.deltaY > 0 ? 1.25 : 0.8);
    const point = view[0] + share * (view[1] - view[0]);
    zoom(point - share * size, point + (1 - share) * size, false);
  }, { passive: false });
  main.querySelector("#flame-reset").addEventListener("click", () => { past = []; here = null; tell(null); zoom(0, end, false); });
  main.querySelector("#flame-find").addEventListener("input", (event) => { wanted = event.target.value.trim().toLowerCase(); draw(); });
  for (const id of data.ids) if (id) pick.append(argand.make("option", { value: id }, `[${id}]`));
  pick.addEventListener("change", () => {
    only = pick.value;
    const mine = spans.filter((s) => s.id === only);
    if (only && mine.length) zoom(Math.min(...mine.map((s) => s.start)), Math.max(...mine.map((s) => s.start + s.length)));
    else zoom(0, end, false);
  });
  new ResizeObserver(draw).observe(box);
  zoom(0, end, false);
});
