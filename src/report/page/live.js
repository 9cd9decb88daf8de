// On pages of `ingot report --watch`: asks for what stands in <main> and takes it over when it has changed. What the reader has done
// stays: scroll, zoom, hidden runs, open parts.
(() => {
'use strict';

const EVERY_MS = 1000, PATIENCE_MS = 30000;
const main = document.querySelector('main'), state = document.createElement('p');
let tag = document.body.dataset.tag, is_pressed = false;
document.body.append(state);

const say = (text, is_wrong) => {
  state.className = is_wrong ? 'live far' : 'live';
  if (state.textContent !== text) state.textContent = text;
};
const time = () => new Date().toLocaleTimeString();
const parts = () => [...main.querySelectorAll('details')];
const scrolled = () => [...main.querySelectorAll('.scroll')];
const name_of = part => part.querySelector('summary').textContent;

const take_over = html => {
  const open = new Map(parts().map(part => [name_of(part), part.open])), lefts = scrolled().map(box => box.scrollLeft);
  const chosen = ingot_plots.choices(), {scrollX, scrollY} = window;
  main.innerHTML = html;
  for (const part of parts()) part.open = open.get(name_of(part)) ?? part.open;
  ingot_plots.draw(chosen);
  scrolled().forEach((box, i) => box.scrollLeft = lefts[i] ?? 0);
  document.title = main.querySelector('h1').textContent + ' – ingot report';
  scrollTo({left: scrollX, top: scrollY, behavior: 'instant'});
};

const ask = async () => {
  const headers = {'If-None-Match': `"${tag}"`};
  const answer = await fetch('main', {headers, cache: 'no-store', signal: AbortSignal.timeout(PATIENCE_MS)});
  if (answer.status !== 304) {
    if (!answer.ok) throw Error(answer.status);
    const html = await answer.text();
    if (is_busy()) return;
    take_over(html);
    tag = answer.headers.get('ETag').replaceAll('"', '');
    say(`live · changed ${time()}`);
  } else if (!state.textContent || state.classList.contains('far')) {
    say('live');
  }
};

// Whoever drags over a plot or selects text keeps what is under the pointer.
const is_busy = () => is_pressed || !getSelection().isCollapsed;
addEventListener('pointerdown', () => is_pressed = true, true);
for (const end of ['pointerup', 'pointercancel', 'blur']) addEventListener(end, () => is_pressed = false, true);

let timer, is_asking = false;
const go_on = async () => {
  clearTimeout(timer);
  if (is_asking || document.hidden) return;
  is_asking = true;
  try {
    if (!is_busy()) await ask();
  } catch (failure) {
    if (!state.classList.contains('far')) say(`no answer since ${time()}: has ingot report --watch ended?`, true);
  }
  is_asking = false;
  timer = setTimeout(go_on, EVERY_MS);
};
document.addEventListener('visibilitychange', go_on);
go_on();
})();
