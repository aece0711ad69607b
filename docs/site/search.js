// Tidies what is typed into the search box before it is searched for.
//
// A hyphen before a word is that of a flag, such as --resume; to lunr it would
// mean NOT. Words such as "a" are left out: each is taken for the beginning of a
// word, and so would match nearly every page.
const SMALL =
  /^(an?|the|of|to|do|does|how|i|my|is|it|in|on|for|with|what|can|and|or)$/i;
// The one message to the search worker that holds a query.
const QUERY = 2;

function tidied(query) {
  const words = query.split(/\s+/).map((word) => word.replace(/^-+/, ""));
  return words.filter((word) => !SMALL.test(word)).join(" ");
}

const post = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...rest) {
  if (message?.type === QUERY) {
    message = { ...message, data: tidied(message.data) };
  }
  return post.call(this, message, ...rest);
};
