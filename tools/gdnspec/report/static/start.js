// Puts it all to work, and opens what an address names.
document.querySelectorAll("table[data-sortable]").forEach(sortable);
document.querySelectorAll(".charts").forEach(chartsOf);
document.querySelectorAll(".traces").forEach((box) => { filterable(box); expandable(box); });
document.querySelectorAll(".conformance").forEach(verdictsOf);
document.querySelectorAll(".profiles").forEach(profilesOf);
const showAnswer = fastestOf(document.querySelector(".fastest"));

function openTarget() {
  let id = location.hash.slice(1);
  try { id = decodeURIComponent(id); } catch { /* taken as it is */ }
  const target = id && document.getElementById(id);
  if (!target) return;
  if (target.matches(".answer")) return showAnswer(target);
  for (let at = target.querySelector(":scope > details") ?? target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  target.scrollIntoView();
}
addEventListener("hashchange", openTarget);
// A second click on the same link changes no address.
document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#"]');
  if (link && link.getAttribute("href") === location.hash) openTarget();
});
openTarget();

const places = new Map([...document.querySelectorAll("nav a")].map((link) => [link.getAttribute("href").slice(1), link]));
const reading = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) places.get(entry.target.id)?.setAttribute("aria-current", "true");
    else places.get(entry.target.id)?.removeAttribute("aria-current");
  }
}, { rootMargin: "-64px 0px -70% 0px" });
places.forEach((_, id) => { const section = document.getElementById(id); if (section) reading.observe(section); });
document.documentElement.dataset.ready = String(Math.round(performance.now()));
