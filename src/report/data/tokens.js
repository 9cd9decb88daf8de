// Tokens under the pointer, a finger or the arrow keys: what the chosen one is stands in the line below them.
(() => {
'use strict';
for (const box of document.querySelectorAll('div.tokens')) {
  const tokens = [...box.querySelectorAll('span[title]')], line = box.nextElementSibling;
  let at = -1;
  const choose = i => {
    if (!tokens[i]) return;
    tokens[at]?.classList.remove('at');
    tokens[at = i].classList.add('at');
    line.textContent = tokens[i].title;
  };
  const STEPS = {ArrowRight: () => at + 1, ArrowLeft: () => Math.max(0, at - 1), Home: () => 0, End: () => tokens.length - 1};
  box.addEventListener('keydown', event => {
    if (!STEPS[event.key] || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    choose(STEPS[event.key]());
    tokens[at]?.scrollIntoView({block: 'nearest'});
  });
  for (const type of ['pointerover', 'click']) box.addEventListener(type, event => choose(tokens.indexOf(event.target.closest('span[title]'))));
}
})();
