// The pickers: of the answers that the page holds, they show the one that a reader asks for.
function fastestOf(box) {
  const answers = [...box.querySelectorAll(".answer")];
  const selects = [...box.querySelectorAll("[data-pick]")];
  const keys = selects.map((select) => select.dataset.pick);
  const heaviest = (some) => some.reduce((best, answer) => (Number(answer.dataset.weight) > Number(best.dataset.weight) ? answer : best));

  // Each picker offers what there is with the choices before it.
  function fill(chosen) {
    let some = answers;
    selects.forEach((select, i) => {
      const key = keys[i];
      const found = new Map(some.map((answer) => [answer.dataset[key], answer.dataset]));
      const groups = new Map();
      for (const [value, said] of found) {
        const group = said[`${key}Group`] ?? "";
        if (!groups.has(group)) groups.set(group, []);
        groups.get(group).push(el("option", { value }, said[`${key}Said`] ?? value));
      }
      select.replaceChildren(...[...groups].flatMap(([group, options]) => (group ? [el("optgroup", { label: group }, ...options)] : options)));
      select.value = chosen.dataset[key];
      select.disabled = false;
      some = some.filter((answer) => answer.dataset[key] === chosen.dataset[key]);
    });
  }

  function show(chosen) {
    answers.forEach((answer) => { answer.hidden = answer !== chosen; });
    fill(chosen);
  }

  // What was chosen before and beside the changed picker stays, as far as there is an answer to it.
  function pick(changed) {
    let some = answers;
    selects.forEach((select, i) => {
      const fits = some.filter((answer) => answer.dataset[keys[i]] === select.value);
      if (i <= changed || fits.length) some = fits;
    });
    const chosen = heaviest(some);
    show(chosen);
    history.replaceState(null, "", `#${chosen.id}`);
  }

  selects.forEach((select, i) => select.addEventListener("change", () => pick(i)));
  const first = answers.find((answer) => !answer.hidden);
  if (first) show(first);
  return (answer) => {
    show(answer);
    scrollTo(0, 0);
  };
}
