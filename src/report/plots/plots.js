// Gives the JSON of each figure to dygraphs: curves, bars and heat maps with tooltips, a zoom that plots over the same x share, and
// runs that can be hidden. What comes from files is only ever text of an element or painted, never HTML.
(() => {
'use strict';

const make = (name, style, text = '') => Object.assign(document.createElement(name), {className: style, textContent: text});
const page = getComputedStyle(document.documentElement);
const colour = name => page.getPropertyValue('--' + name).trim();
const run_colour = run => colour('c' + run % 8);
const is_square = run => Math.floor(run / 8) % 2 === 1;
const part_colour = style => style === 'other' ? colour('soft') + '59' : colour(style);
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

// ---- numbers

const UNITS = {
  plain: [1, ['']],
  count: [1000, ['', ' k', ' M', ' G', ' T', ' P', ' E']],
  bytes: [1024, [' B', ' KiB', ' MiB', ' GiB', ' TiB', ' PiB']],
  tokens: [1024, ['', 'K', 'M', 'G']],
};
const exponent = (value, digits) => value.toExponential(digits).replace(/\.?0*e\+?/, 'e');
const show = value => {
  const size = Math.abs(value);
  if (size && (size < 1e-3 || size >= 1e15)) return exponent(value, 5);
  return value.toLocaleString('en', size >= 1e5 ? {maximumFractionDigits: 1} : {maximumSignificantDigits: 6});
};
const show_x = (value, axis) => {
  const [base, names] = UNITS[axis.format];
  if (axis.format === 'plain' || axis.format === 'count' && value < 1e9) return show(value);
  const unit = clamp(Math.floor(Math.log(value) / Math.log(base) + 1e-9), 0, names.length - 1);
  return show(value / base ** unit) + names[unit];
};
// `distance` to the next tick decides on the decimals, `largest` on the unit, so that one axis has one unit.
const tick_label = (value, distance, largest, format) => {
  if (value === 0) return '0';
  const [base, names] = format === 'count' && largest < 1e4 ? UNITS.plain : UNITS[format];
  for (const name of names) {
    if (largest < base || name === names[names.length - 1]) {
      if (largest < 1e-3 || largest >= 1e9) return exponent(value, 3) + name;
      const decimals = clamp(Math.ceil(-Math.log10(distance) - 1e-9), 0, 9);
      return value.toLocaleString('en', {minimumFractionDigits: decimals, maximumFractionDigits: decimals}) + name;
    }
    value /= base, distance /= base, largest /= base;
  }
};
// Powers, of ten with 2 and 5 between them when there are few.
const log_ticks = (low, high, most, format) => {
  const base = UNITS[format][0] === 1024 ? 2 : 10, power_of = value => Math.log(value) / Math.log(base);
  const first = Math.floor(power_of(low) + 1e-9), last = Math.floor(power_of(high) + 1e-9), stride = Math.max(1, Math.ceil((last - first) / most));
  const ticks = [];
  for (let power = last; power >= first; power -= stride) {
    for (const digit of base === 10 && last - first <= 2 ? [5, 2, 1] : [1]) {
      const value = digit * base ** power;
      if (value >= low && value <= high) ticks.unshift({v: value, label: tick_label(value, value, value, format)});
    }
  }
  return ticks;
};
const numeric_ticks = format => (low, high, pixels, options, g, values) => {
  const powers = options('logscale') ? log_ticks(low, high, pixels / options('pixelsPerLabel'), format) : [];
  if (powers.length > 1) return powers;
  const view = name => name === 'logscale' ? false : options(name);
  const ticks = Dygraph.numericTicks(low, high, pixels, view, g, values).filter(t => t.label && t.v >= low && t.v <= high);
  const distance = Math.min(...ticks.slice(1).map((t, i) => Math.abs(t.v - ticks[i].v)));
  const largest = Math.max(...ticks.map(t => Math.abs(t.v)));
  for (const t of ticks) t.label = tick_label(t.v, isFinite(distance) ? distance : t.v, largest, format);
  return ticks;
};
// Cells and bars: their names where there is room, in the middle of each, or between the numbers 0 to `count`.
const name_ticks = (count, name, place) => (low, high, pixels, options) => {
  const visible = Math.min(count, Math.abs(high - low)), stride = Math.max(1, Math.ceil(visible * options('pixelsPerLabel') / pixels));
  const ticks = [];
  for (let i = 0; i < count; i += stride) if (place(i) >= low && place(i) <= high) ticks.push({v: place(i), label: name(i)});
  return ticks;
};

// ---- tooltips

const tip = document.body.appendChild(make('div', 'tip'));
const hide_tip = () => tip.hidden = true;
hide_tip();
const tip_row = (name, value, run) => {
  const row = make('div', ''), left = make('span', '');
  if (run !== undefined) left.append(make('span', `dot c${run % 8}${is_square(run) ? ' square' : ''}`));
  left.append(name);
  row.append(left, make('b', '', value));
  return row;
};
const show_tip = (event, rows) => {
  tip.replaceChildren(...rows);
  tip.hidden = rows.length === 0;
  const {offsetWidth: width, offsetHeight: height} = tip, {clientX: x, clientY: y} = event;
  tip.style.left = Math.max(4, x + 16 + width > innerWidth ? x - 16 - width : x + 16) + 'px';
  tip.style.top = clamp(y + 16, 4, Math.max(4, innerHeight - height - 4)) + 'px';
};

// ---- charts: {g, box, data, home, fits, group, hover, paint, rule}

const charts = [];
let is_following = false;
const together = (chart, use) => {
  is_following = true;
  for (const other of charts) if (other === chart || chart.group && other.group === chart.group) use(other);
  is_following = false;
};
const place_of = chart => chart.g.xAxisRange().join();
const start_over = chart => together(chart, c => {
  c.g.updateOptions({dateWindow: null, valueRange: c.home});
  c.place = place_of(c);
});
// Others take the chart's x over, and curves the height that what is left of them needs.
const follow = chart => {
  if (is_following || !chart.g || chart.place === place_of(chart)) return;
  const dateWindow = chart.g.xAxisRange();
  together(chart, c => {
    c.g.updateOptions(c.fits ? {dateWindow, valueRange: null} : {dateWindow});
    c.place = place_of(c);
  });
};

// One finger scrolls the page and reads values; two zoom.
const {defaultInteractionModel: model} = Dygraph;
const interaction = {
  ...model,
  touchstart: (event, g, context) => event.touches.length > 1 && model.touchstart(event, g, context),
  touchmove: (event, g, context) => event.touches.length > 1 && model.touchmove(event, g, context),
  touchend: (event, g, context) => event.touches.length === 0 && model.touchend(event, g, context),
};

// Of a number on the x axis, also of one with powers, which toDomXCoord takes for a plain one.
const x_place = (g, x) => {
  const {x: left, w} = g.getArea();
  return left + g.toPercentXCoord(x) * w;
};

const draw_marks = (ctx, area, g, marks) => {
  for (const mark of marks) {
    const x = Math.round(x_place(g, mark.x)) + .5;
    if (!(x >= area.x && x <= area.x + area.w)) continue;
    ctx.strokeStyle = ctx.fillStyle = run_colour(mark.run);
    ctx.setLineDash([2, 3]);
    ctx.beginPath(), ctx.moveTo(x, area.y), ctx.lineTo(x, area.y + area.h), ctx.stroke();
    ctx.setLineDash([]);
    ctx.beginPath(), ctx.moveTo(x - 5, area.y), ctx.lineTo(x + 5, area.y), ctx.lineTo(x, area.y + 7), ctx.fill();
  }
};

const mount = (box, data, chart, rows, labels, options) => {
  const {x, y} = data, canvas = make('div', 'canvas');
  box.append(make('span', 'unit', y.label), make('span', 'xlabel', x.label), canvas);
  Object.assign(chart, {box, data, rule: box.appendChild(make('span', 'rule'))});
  const paint = () => ({gridLineColor: colour('grid'), axisLineColor: colour('soft'), ...(chart.paint && {series: chart.paint()})});
  const area = () => chart.g.getArea();
  chart.g = new Dygraph(canvas, rows, {
    labels, legend: 'never', showLabelsOnHighlight: false, highlightCircleSize: 0, connectSeparatedPoints: true, valueRange: chart.home,
    axisLabelFontSize: 11.5, interactionModel: interaction, drawCallback: () => follow(chart), rightGap: 31,
    underlayCallback: (ctx, part, g) => draw_marks(ctx, part, g, data.marks),
    ...options, ...paint(),
  });
  chart.place = place_of(chart);
  chart.g.resetZoom = () => start_over(chart);
  chart.repaint = () => chart.g.updateOptions(paint());
  const leave = () => {
    hide_tip();
    for (const c of charts) c.rule.hidden = true;
  };
  const move = event => {
    const [left, top] = chart.g.eventToDomCoords(event), {x: ax, y: ay, w, h} = area();
    if (left < ax || left > ax + w || top < ay || top > ay + h) return leave();
    const at = chart.hover(left, top);
    if (!at) return leave();
    show_tip(event, at.rows);
    for (const c of charts) {
      const part = c.g.getArea(), place = at.x === undefined ? NaN : x_place(c.g, at.x);
      c.rule.hidden = !((c === chart || chart.group && c.group === chart.group) && place >= part.x && place <= part.x + part.w);
      c.rule.style.cssText = `left:${place}px;top:${part.y}px;height:${part.h}px`;
    }
  };
  leave();
  canvas.addEventListener('pointermove', move);
  canvas.addEventListener('pointerdown', move);
  canvas.addEventListener('pointerleave', event => event.pointerType !== 'touch' && leave());
  charts.push(chart);
};

// ---- curves and points

// From below; a hole lies on the dots of its own series, not on those of all.
const LAYERS = {faint: 0, specks: 1, dashed: 2, line: 3, mean: 3, dots: 4, holes: 4};
const SIZES = {dots: 3.5, specks: 2.25, holes: 1.75};
const draw_point = run => (g, name, ctx, x, y, fill, size) => {
  ctx.fillStyle = fill;
  ctx.beginPath();
  if (is_square(run)) ctx.rect(x - size, y - size, 2 * size, 2 * size);
  else ctx.arc(x, y, size, 0, 2 * Math.PI);
  ctx.fill();
};
const series_style = s => {
  const size = SIZES[s.stroke], own = run_colour(s.run);
  return {
    color: s.stroke === 'holes' ? colour('paper') : s.stroke === 'faint' ? own + '50' : s.stroke === 'specks' ? own + 'bf' : own,
    strokeWidth: size ? 0 : s.stroke === 'faint' ? 1 : 1.75, strokePattern: s.stroke === 'dashed' ? [5, 5] : null,
    drawPoints: !!size, pointSize: size ?? 1, drawPointCallback: draw_point(s.run),
  };
};
// A row for each x, with null where a series has nothing and NaN where it has a gap; the first and the last are the plot's borders.
const rows_of = (series, axis) => {
  const points = series.flatMap((s, i) => s.x.map((x, k) => [x, i, s.y[k] ?? NaN])).sort((a, b) => a[0] - b[0]);
  const empty = x => [x, ...series.map(() => null)], rows = [empty(axis.low)];
  for (const [x, i, y] of points) {
    if (rows[rows.length - 1][0] !== x || rows[rows.length - 1][i + 1] !== null) rows.push(empty(x));
    rows[rows.length - 1][i + 1] = y;
  }
  return [...rows, empty(axis.high)];
};
const nearest = (s, x) => {
  let low = 0, high = s.x.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (s.x[middle] <= x) low = middle;
    else high = middle;
  }
  return high >= 0 && Math.abs(s.x[high] - x) < Math.abs(s.x[low] - x) ? high : low;
};
const point_tip = (chart, shown, left, top) => {
  let best = {distance: 40};
  for (const s of shown) {
    s.x.forEach((x, k) => {
      const distance = Math.hypot(x_place(chart.g, x) - left, chart.g.toDomYCoord(s.y[k]) - top);
      if (SIZES[s.stroke] && distance < best.distance) best = {distance, s, x, y: s.y[k]};
    });
  }
  const {x, y} = chart.data;
  return best.s && {rows: [tip_row(best.s.name, '', best.s.run), tip_row(x.label, show_x(best.x, x)), tip_row(y.label, show(best.y))]};
};
const curve_tip = (chart, shown, left) => {
  const {g, data} = chart, pixels = x => Math.abs(x_place(g, x) - left);
  const here = g.toDataXCoord(left), some = shown.filter(s => s.x.length && s.stroke !== 'mean');
  if (!some.length) return;
  const measured = some.filter(s => s.stroke !== 'dashed');
  const x = (measured.length ? measured : some).map(s => s.x[nearest(s, here)]).reduce((a, b) => pixels(b) < pixels(a) ? b : a);
  const rows = [tip_row(data.x.label, show_x(x, data.x))], named = new Set();
  for (const s of shown) {
    const k = nearest(s, x), value = s.y[k], own = s.x[k];
    if (value === undefined || value === null || named.has(s.name) || x < s.x[0] || x > s.x[s.x.length - 1]) continue;
    if (SIZES[s.stroke] && pixels(own) > 8) continue;
    named.add(s.name);
    const beside = s.y[own < x ? k + 1 : k - 1], elsewhere = own !== x && s.stroke !== 'mean' && beside !== value;
    rows.push(tip_row(s.name + (elsewhere ? ` (at ${show_x(own, data.x)})` : ''), show(value), s.run));
  }
  for (const mark of data.marks) if (pixels(mark.x) < 6) rows.push(tip_row(mark.text, '', mark.run));
  return {rows, x};
};
const log_button = chart => {
  const {x, y, series} = chart.data, values = series.flatMap(s => s.y).filter(v => v !== null);
  if (!values.length || values.some(v => v <= 0)) return;
  const button = make('button', 'log', 'log'), given = chart.home;
  let is_log = y.log;
  const press = () => {
    button.setAttribute('aria-pressed', is_log);
    chart.home = is_log === y.log ? given : null;
  };
  chart.is_log = () => is_log;
  chart.switch_log = () => {
    is_log = !is_log;
    press();
    chart.g.updateOptions({axes: {y: {logscale: is_log}}, valueRange: chart.g.isZoomed('x') ? null : chart.home});
  };
  button.type = 'button';
  button.addEventListener('click', chart.switch_log);
  press();
  chart.box.closest('figure').querySelector('figcaption').append(button);
};
const lines = (box, data) => {
  const {x, y} = data;
  const series = data.series.sort((a, b) => LAYERS[a.stroke] - LAYERS[b.stroke]);
  const chart = {home: [y.low, y.high], fits: true, group: x.label};
  chart.paint = () => Object.fromEntries(series.map((s, i) => [String(i), series_style(s)]));
  chart.hover = (left, top) => {
    const shown = series.filter((s, i) => chart.g.visibility()[i] && s.stroke !== 'holes');
    return data.scattered ? point_tip(chart, shown, left, top) : curve_tip(chart, shown, left);
  };
  mount(box, data, chart, rows_of(series, x), ['x', ...series.map((s, i) => String(i))], {
    axes: {
      x: {logscale: x.log, drawGrid: false, ticker: numeric_ticks(x.format), pixelsPerLabel: 70},
      y: {logscale: y.log, ticker: numeric_ticks(y.format), axisLabelWidth: 50, pixelsPerLabel: 28},
    },
  });
  log_button(chart);
};

// ---- bars: what one is made of, a thin lane beside it for what went on at the same time, and a line across

const bars = (box, data) => {
  const {bars: all, y} = data, count = Math.max(all.length, 8), thick = data.beside ? .56 : .72;
  const draw = ({drawingContext: ctx, dygraph: g}) => {
    const area = g.getArea();
    const fill = (style, from, width, low, high) => {
      const left = x_place(g, from), top = g.toDomYCoord(high);
      ctx.fillStyle = style;
      ctx.fillRect(left, top, Math.max(1, x_place(g, from + width) - left), g.toDomYCoord(low) - top);
    };
    all.forEach((bar, i) => {
      if (bar.failed) {
        fill(colour('far') + '29', i - .5, 1, y.low, y.high);
        const x = x_place(g, i), top = area.y + 3;
        ctx.strokeStyle = colour('far'), ctx.lineWidth = 2, ctx.setLineDash([]);
        ctx.beginPath(), ctx.moveTo(x - 4, top), ctx.lineTo(x + 4, top + 8), ctx.moveTo(x + 4, top), ctx.lineTo(x - 4, top + 8), ctx.stroke();
      }
      let height = 0;
      bar.heights.forEach((part, k) => part > 0 && fill(part_colour(data.styles[k]), i - .36, thick, height, height += part));
      if (bar.beside) fill(part_colour(data.beside), i - .36 + thick, .16, ...bar.beside);
      if (!bar.tick) return;
      ctx.fillStyle = colour('ink');
      ctx.fillRect(x_place(g, i - .36), g.toDomYCoord(bar.tick) - 1, Math.max(2, x_place(g, .72) - x_place(g, 0)), 2.5);
    });
  };
  data.marks = all.flatMap((bar, i) => bar.mark ? [{x: i - .5, run: data.run}] : []);
  const chart = {home: [y.low, y.high]};
  chart.hover = left => {
    const i = Math.round(chart.g.toDataXCoord(left)), bar = all[i];
    return bar && {rows: [...bar.text.split('\n'), bar.mark ?? ''].filter(line => line).map(line => make('div', '', line)), x: i};
  };
  mount(box, data, chart, [[-.5, null], ...all.map((bar, i) => [i, 0]), [count - .5, null]], ['x', 'y'], {
    plotter: draw,
    axes: {
      x: {drawGrid: false, ticker: name_ticks(all.length, i => all[i].name, i => i), pixelsPerLabel: 70},
      y: {ticker: numeric_ticks(y.format), axisLabelWidth: 50, pixelsPerLabel: 28},
    },
  });
};

// ---- heat maps: the first row on top

const heat = (box, data) => {
  const {rows, x, y, low, high} = data, columns = rows[0].length, spans = x.high > x.low;
  const start = spans ? x.low : -.5, width = spans ? (x.high - x.low) / columns : 1;
  const row_name = i => data.row_names?.[i] ?? String(i), column_name = i => data.column_names?.[i] ?? String(i);
  const first = name => name.split('–')[0];
  const draw = ({drawingContext: ctx, dygraph: g}) => {
    const edge_x = Array.from({length: columns + 1}, (_, i) => Math.round(x_place(g, start + i * width)));
    const edge_y = Array.from({length: rows.length + 1}, (_, i) => Math.round(g.toDomYCoord(rows.length - i)));
    ctx.fillStyle = colour('heat');
    rows.forEach((row, r) => row.forEach((value, c) => {
      if (value === null) return;
      const place = clamp(high > low ? (value - low) / (high - low) : 0, 0, 1);
      ctx.globalAlpha = .04 + .96 * (data.low_is_strong ? 1 - place : place);
      ctx.fillRect(edge_x[c], edge_y[r], edge_x[c + 1] - edge_x[c], edge_y[r + 1] - edge_y[r]);
    }));
    ctx.globalAlpha = 1;
  };
  const chart = {home: [0, rows.length], group: spans && x.label};
  chart.hover = (left, top) => {
    const at = chart.g.toDataXCoord(left), c = Math.floor((at - start) / width), r = rows.length - 1 - Math.floor(chart.g.toDataYCoord(top));
    const value = rows[r]?.[c];
    if (value === undefined) return;
    const [from, to] = [c, c + 1].map(i => Math.round(start + i * width));
    const column = !spans ? column_name(c) : to - from > 1 ? `${show_x(from, x)}–${show_x(to, x)}` : show_x(from, x);
    const cell = tip_row(data.unit, value === null ? '–' : show(value));
    return {rows: [tip_row(y.label, row_name(r)), tip_row(x.label, column), cell], ...(spans && {x: at})};
  };
  data.marks = [];
  const column_ticks = name_ticks(columns, i => first(column_name(i)), i => i);
  const row_ticks = name_ticks(rows.length, i => first(row_name(i)), i => rows.length - i - .5);
  mount(box, data, chart, [[start, 0], [start + columns * width, rows.length]], ['x', 'y'], {
    plotter: draw,
    axes: {
      x: {drawGrid: false, pixelsPerLabel: 70, ticker: spans ? numeric_ticks(x.format) : column_ticks},
      y: {drawGrid: false, axisLabelWidth: 50, pixelsPerLabel: 16, ticker: row_ticks},
    },
  });
};

// ---- the page

const switch_run = chip => {
  const is_off = chip.classList.toggle('off'), run = +chip.dataset.r;
  for (const element of document.querySelectorAll('.r' + run)) element.style.display = is_off ? 'none' : '', is_off || shown_again(element);
  for (const {g, data} of charts) {
    const own = (data.series ?? []).flatMap((s, i) => s.run === run ? [i] : []);
    if (own.length) g.setVisibility(Object.fromEntries(own.map(i => [i, !is_off])));
  }
};
const draw = () => {
  hide_tip();
  for (const {g} of charts.splice(0)) g.destroy();
  for (const script of document.querySelectorAll('.plot>script')) {
    const data = JSON.parse(script.textContent);
    ({lines, bars, heat})[data.kind](script.parentNode, data);
  }
  if (charts.length) {
    const how = 'In a plot: drag to zoom, double-click to go back, shift-drag to move; on a touch screen two fingers zoom.';
    document.querySelector('.when').append(' · ' + how);
  }
  for (const chip of document.querySelectorAll('.chip')) {
    chip.classList.add('can');
    chip.title = 'show or hide';
    chip.addEventListener('click', () => switch_run(chip));
  }
};
// What was drawn while it was hidden has no size.
const shown_again = part => charts.forEach(({box, g}) => part.contains(box) && g.resize());
document.addEventListener('toggle', event => shown_again(event.target), true);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => charts.forEach(chart => chart.repaint()));
document.addEventListener('pointerdown', event => event.target.closest('.canvas') || hide_tip());
draw();

// ---- for pages that change (page/live.js): what the reader has chosen, by titles and names, to be chosen again in what is drawn then

const title_of = chart => chart.box.closest('figure').querySelector('h3').textContent;
const zoom_of = ({g, home, fits}) => {
  const dateWindow = g.isZoomed('x') ? g.xAxisRange() : null, [low, high] = g.yAxisRange();
  const is_moved = home && (low !== home[0] || high !== home[1]) && !(fits && dateWindow);
  return {...(dateWindow && {dateWindow, ...(fits && {valueRange: null})}), ...(is_moved && {valueRange: [low, high]})};
};
const choices = () => ({
  plots: new Map(charts.map(chart => [title_of(chart), {zoom: zoom_of(chart), is_log: chart.is_log?.()}])),
  off: new Set([...document.querySelectorAll('.chip.off')].map(chip => chip.textContent)),
});
const choose_again = ({plots, off}) => {
  for (const chart of charts) {
    const {zoom, is_log} = plots.get(title_of(chart)) ?? {};
    if (is_log !== undefined && chart.is_log && chart.is_log() !== is_log) chart.switch_log();
    is_following = true;
    if (zoom && Object.keys(zoom).length) chart.g.updateOptions(zoom);
    is_following = false;
    chart.place = place_of(chart);
  }
  for (const chip of document.querySelectorAll('.chip')) if (off.has(chip.textContent)) switch_run(chip);
};
window.ingot_plots = {choices, draw: chosen => (draw(), choose_again(chosen))};
})();
