"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const tip = $("tip");

  function show(event, text) {
    if (!text) { tip.hidden = true; return; }
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, document.documentElement.clientWidth - box.width - 6);
    const below = event.clientY + 16 + box.height < window.innerHeight;
    tip.style.left = Math.max(left, 4) + "px";
    tip.style.top = (below ? event.clientY + 16 : event.clientY - box.height - 10) + "px";
  }

  // Text for a pointer over an area: `say` gets where it is, as fractions of width and height.
  function hover(area, say) {
    area.addEventListener("pointermove", (event) => {
      const box = area.getBoundingClientRect();
      const x = (event.clientX - box.left) / box.width, y = (event.clientY - box.top) / box.height;
      show(event, x >= 0 && x < 1 && y >= 0 && y < 1 ? say(x, y) : "");
    });
    area.addEventListener("pointerleave", (event) => show(event, ""));
  }

  function written(micro) {
    const units = [["h", 3600e6], ["min", 60e6], ["s", 1e6], ["ms", 1e3], ["µs", 1]];
    const [unit, size] = units.find(([, size]) => Math.abs(micro) >= 2 * size) || units[4];
    return +(micro / size).toPrecision(4) + " " + unit;
  }

  for (const area of document.querySelectorAll("[data-tips]")) {
    const tips = JSON.parse(area.dataset.tips);
    hover(area, (x) => tips[Math.floor(x * tips.length)]);
  }
  for (const area of document.querySelectorAll("[data-grid]")) {
    const grid = JSON.parse(area.dataset.grid);
    hover(area, (x, y) => {
      const row = Math.floor(y * grid.rows.length), at = Math.floor(x * grid.values[row].length);
      const value = grid.values[row][at];
      return value === null ? "" : `${grid.rows[row]} at ${written(at * grid.width * 1e6)}\n${value} ${grid.unit}`;
    });
  }
  for (const button of document.querySelectorAll("button[data-show]")) {
    button.addEventListener("click", () => {
      for (const other of button.parentElement.children) {
        other.setAttribute("aria-pressed", String(other === button));
        $(other.dataset.show).hidden = other !== button;
      }
    });
  }
  // A word leads to its definition: what is folded opens for it.
  function unfold() {
    const there = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const folded = there && there.closest("details");
    if (folded && !folded.open) { folded.open = true; there.scrollIntoView(); }
  }
  window.addEventListener("hashchange", unfold);
  unfold();
  if ($("slices")) timeline(JSON.parse($("slices").textContent));

  function timeline(data) {
    // Slices come as gap since the one before, length, kind, epoch, step; here they get their place in time.
    const levels = data.levels.map((level) => ({
      from: level.from, to: level.to,
      rows: level.rows.map((packed) => {
        const slices = [];
        for (let at = 0, now = 0; at < packed.length; at += 5) {
          const start = now + packed[at], end = start + packed[at + 1];
          slices.push([start, end, packed[at + 2], packed[at + 3], packed[at + 4]]);
          now = end;
        }
        return slices;
      }),
    }));
    const whole = levels[0], height = 20, tall = height * data.tracks.length;
    let from = whole.from, to = whole.to, level = whole;
    const before = [];

    const who = document.createElement("div"), area = document.createElement("div"), axis = document.createElement("div");
    who.className = "who"; area.className = "area"; axis.className = "x";
    for (const name of data.tracks) {
      const line = who.appendChild(document.createElement("span"));
      line.textContent = name; line.title = name;
      if (name.startsWith("rank") && !name.endsWith("inside")) line.className = "rank";
    }
    $("tracks").append(who, area, axis);

    const buttons = data.windows.map((stretch) => {
      const button = $("windows").appendChild(document.createElement("button"));
      button.type = "button"; button.textContent = stretch.name;
      button.addEventListener("click", () => go(stretch.from, stretch.to));
      return button;
    });

    function first(slices, moment) { // the first one that ends after a moment
      let low = 0, high = slices.length;
      while (low < high) { const mid = (low + high) >> 1; if (slices[mid][1] > moment) high = mid; else low = mid + 1; }
      return low;
    }

    function draw() {
      level = levels.slice(1).find((one) => one.from <= from && to <= one.to) || whole;
      const span = to - from, width = 2000, used = new Set();
      const paths = data.kinds.map(() => []);
      level.rows.forEach((slices, row) => {
        const y = row * height + 2;
        let drawn = -1, last = -1;
        for (let at = first(slices, from); at < slices.length && slices[at][0] < to; at++) {
          const [start, end, kind] = slices[at];
          const left = Math.max((start - from) / span, 0) * width, right = Math.min((end - from) / span, 1) * width;
          used.add(kind);
          if (right - left < 0.5 && Math.round(left) === drawn && kind === last) continue; // already a hair there
          drawn = Math.round(left); last = kind;
          const wide = Math.max(right - left - (right - left > 6 ? 1.6 : 0), 1); // a hair between neighbours
          paths[kind].push(`M${left.toFixed(1)} ${y}h${wide.toFixed(1)}v${height - 4}H${left.toFixed(1)}Z`);
        }
      });
      const rules = data.tracks.map((_, row) => `M0 ${row * height + 2}H${width}v${height - 4}H0Z`).join("");
      area.innerHTML = `<svg viewBox="0 0 ${width} ${tall}" preserveAspectRatio="none" style="height:${tall}px" role="img" ` +
        `aria-label="timeline of roles"><path class="rule" d="${rules}"/>` +
        paths.map((d, kind) => d.length ? `<path class="c-${data.kinds[kind]}" d="${d.join("")}"/>` : "").join("") + "</svg>";
      $("kinds").innerHTML = [...used].sort((a, b) => a - b).map((kind) =>
        `<span><i class="c-${data.kinds[kind]}"></i>${named(data.kinds[kind])}</span>`).join("");
      axis.innerHTML = ticks(span).map(([part, text], n) =>
        `<span class="${n % 2 ? "odd" : "even"}${part > 0.96 ? " end" : ""}" style="left:${100 * part}%">${text}</span>`).join("");
      $("range").textContent = `${written(span)} from ${written(from)} on` + (data.coarse && level === whole ? ", coarsely" : "");
      buttons.forEach((button, n) => button.setAttribute("aria-pressed", data.windows[n].from === from && data.windows[n].to === to));
    }

    // A name leads to its definition where the page has one.
    function named(kind) {
      return $(`d-span-${kind}`) ? `<a class="t" href="#d-span-${kind}">${kind}</a>` : kind;
    }

    function ticks(span) {
      let step = 10 ** Math.floor(Math.log10(span / 6));
      step *= [1, 2, 5, 10].find((times) => step * times >= span / 6);
      if (step > 10e6) step = [20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400]
        .map((seconds) => seconds * 1e6).find((one) => one >= span / 6) || step;
      const fits = ([, size]) => to >= 2 * size && (size <= 1e6 || step >= size);
      const found = [], unit = [["h", 3600e6], ["min", 60e6], ["s", 1e6], ["ms", 1e3], ["µs", 1]].find(fits) || ["µs", 1];
      for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
        found.push([(at - from) / span, +(at / unit[1]).toPrecision(9) + " " + unit[0]]);
      }
      return found;
    }

    function go(begin, end, remember = true) {
      if (remember) before.push([from, to]);
      const span = Math.min(Math.max(end - begin, 20), whole.to - whole.from);
      from = Math.max(Math.min(begin, whole.to - span), whole.from);
      to = from + span;
      draw();
    }

    for (const button of $("timeline").querySelectorAll("[data-zoom], [data-move]")) {
      button.addEventListener("click", () => {
        const span = to - from, middle = (from + to) / 2;
        if (button.dataset.move) go(from + button.dataset.move * span / 2, to + button.dataset.move * span / 2);
        else if (+button.dataset.zoom) go(middle - span * button.dataset.zoom / 2, middle + span * button.dataset.zoom / 2);
        else go(whole.from, whole.to);
      });
    }

    hover(area, (x, y) => {
      const row = Math.min(Math.floor(y * data.tracks.length), data.tracks.length - 1), moment = from + x * (to - from);
      const slice = level.rows[row][first(level.rows[row], moment)];
      if (!slice || slice[0] > moment) return data.tracks[row];
      const place = slice[4] >= 0 ? `, epoch ${slice[3]}, step ${slice[4]}` : "";
      const mostly = data.coarse && level === whole ? "mostly " : "";
      return `${data.tracks[row]}: ${mostly}${data.kinds[slice[2]]}${place}\n${written(slice[1] - slice[0])} from ${written(slice[0])} on`;
    });

    let pressed = null, brush = null;
    const at = (event) => {
      const box = area.getBoundingClientRect();
      return Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
    };
    area.addEventListener("pointerdown", (event) => { if (event.button === 0) pressed = at(event); });
    window.addEventListener("pointermove", (event) => {
      if (pressed === null) return;
      const now = at(event);
      if (!brush) { brush = area.appendChild(document.createElement("div")); brush.className = "brush"; }
      brush.style.left = 100 * Math.min(pressed, now) + "%";
      brush.style.width = 100 * Math.abs(now - pressed) + "%";
    });
    window.addEventListener("pointerup", (event) => {
      if (pressed === null) return;
      const low = Math.min(pressed, at(event)), high = Math.max(pressed, at(event)), span = to - from;
      pressed = null;
      if (brush) { brush.remove(); brush = null; }
      if (high - low > 0.01) go(from + low * span, from + high * span);
    });
    window.addEventListener("pointercancel", () => { pressed = null; if (brush) { brush.remove(); brush = null; } });
    area.addEventListener("dblclick", () => { const last = before.pop(); if (last) go(...last, false); });

    const start = data.windows[0] || whole;
    go(start.from, start.to, false);
  }
})();
