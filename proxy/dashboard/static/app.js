// Keeps a page up to date without a reload: fetches it again and exchanges what is marked as live, if it has changed.
// What was unfolded stays so, and so do the focus and the place on the page. Nothing is fetched while the page is hidden.
"use strict";

const EVERY = 2000; // milliseconds after an answer

function keepFresh() {
  setTimeout(() => refresh().finally(keepFresh), EVERY);
}

async function refresh() {
  const live = document.querySelector("[data-live]");
  if (document.hidden || !live || live.contains(document.activeElement) && document.activeElement.matches("input, select, textarea")) return;
  let response;
  try {
    response = await fetch(location.href, { cache: "no-store", redirect: "error" });
  } catch {
    return say("The proxy does not answer.");
  }
  if (response.status === 401) return location.reload();
  if (!response.ok) return say(`The proxy answered ${response.status}.`);
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const fresh = page.querySelector("[data-live]");
  if (!fresh || fresh.innerHTML === live.dataset.seen) return;
  const seen = fresh.innerHTML;
  const open = [...live.querySelectorAll("details[id]")].filter((each) => each.open).map((each) => each.id);
  const focus = pathTo(live, document.activeElement);
  open.forEach((id) => fresh.querySelector(`#${CSS.escape(id)}`)?.setAttribute("open", ""));
  live.replaceChildren(...fresh.childNodes);
  live.dataset.seen = seen;
  if (focus) elementAt(live, focus)?.focus({ preventScroll: true });
  say("");
}

function pathTo(root, element) {
  if (!root.contains(element) || element === root) return null;
  const path = [];
  for (let at = element; at !== root; at = at.parentElement) path.unshift([...at.parentElement.children].indexOf(at));
  return path;
}

function elementAt(root, path) {
  return path.reduce((at, place) => at?.children[place], root);
}

function say(text) {
  const status = document.getElementById("status");
  if (status.textContent !== text) status.textContent = text;
}

// Unfolds a message in its place; without a script, the link leads to a page with all of it.
document.addEventListener("click", async (event) => {
  const link = event.target.closest?.("a[data-unfold]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const response = await fetch(link.href, { cache: "no-store", redirect: "error" }).catch(() => null);
  const page = response?.ok && new DOMParser().parseFromString(await response.text(), "text/html");
  const text = page && page.getElementById("text");
  if (!text) return void (location.href = link.href);
  link.previousElementSibling.textContent = text.textContent;
  link.remove();
});

// A link to a row of a folded table opens it.
function openTarget() {
  const target = document.getElementById(location.hash.slice(1));
  for (let at = target; at; at = at.parentElement) if (at.matches("details")) at.open = true;
  target?.scrollIntoView();
}
addEventListener("hashchange", openTarget);
openTarget();

document.addEventListener("submit", (event) => {
  const question = event.submitter?.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});
const live = document.querySelector("[data-live]");
if (live) {
  live.dataset.seen = live.innerHTML;
  keepFresh();
}
