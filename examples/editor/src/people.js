// Who sits at this page: a name, which is kept, and a colour that follows from it.
const ANIMALS = ["Otter", "Heron", "Lynx", "Badger", "Kestrel", "Marten", "Osprey", "Beaver", "Curlew", "Stoat", "Plover", "Hare"]
const HUES = [205, 152, 28, 338, 262, 178, 48, 12, 232, 120, 300, 90]
const KEY = "tailrace-editor-name"

/** The user of this window: of the address (`?name=`), of the last visit, or a new one. */
export function thisUser() {
  const given = new URLSearchParams(location.search).get("name")
  let name = given ?? localStorage.getItem(KEY)
  if (!name) {
    name = `${ANIMALS[Math.floor(Math.random() * ANIMALS.length)]} ${Math.floor(Math.random() * 90 + 10)}`
    localStorage.setItem(KEY, name)
  }
  return userNamed(name)
}

export function rememberName(name) {
  localStorage.setItem(KEY, name)
}

export function userNamed(name) {
  let sum = 0
  for (const letter of name) sum = (sum * 31 + letter.codePointAt(0)) >>> 0
  const hue = HUES[sum % HUES.length]
  return { name, color: `hsl(${hue} 62% 42%)`, colorLight: `hsl(${hue} 80% 60% / 0.28)` }
}

export const initials = (name) =>
  name
    .split(/\s+/)
    .map((word) => word[0] ?? "")
    .join("")
    .slice(0, 2)
    .toUpperCase()
