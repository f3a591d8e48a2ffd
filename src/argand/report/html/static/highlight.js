// Syntax highlighting, when a page is looked at: a report of a large trace has thousands of pages, and few are opened.
// Lines keep their elements (links name them); only what is inside of them is replaced, as nodes with texts.
(() => {
  const set = (words) => new Set(words.split(" "));
  const CPP = /#include|extern "C"|#define|#pragma/;
  const languages = {
    python: {
      rule: /(?<c1>#[^\n]*)|(?<block>[rRbBfFuU]{0,2}(?:'''[^]*?(?:'''|$)|"""[^]*?(?:"""|$)))|(?<s>[rRbBfFuU]{0,2}(?:"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?))|(?<nd>@[\w.]+)|(?<mi>\b(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.[\d_]*)?(?:[eE][+-]?\d+)?j?))|(?<word>[A-Za-z_]\w*)/g,
      k: set("and as assert async await break class continue def del elif else except finally for from global if import in is lambda nonlocal not or pass raise return try while with yield match case"),
      kc: set("None True False NotImplemented Ellipsis"),
      nb: set("self abs all any bool bytes callable dict divmod enumerate filter float getattr globals hash id int isinstance iter len list map max min next object open print property range repr reversed round set setattr slice sorted str sum super tuple type vars zip"),
      after: { def: "nf", class: "nc" },
    },
    cpp: {
      rule: /(?<c1>\/\/[^\n]*|\/\*[^]*?(?:\*\/|$))|(?<cp>^[ \t]*#(?:\\\n|[^\n])*)|(?<s>[LuU]?"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)|(?<mi>\b(?:0[xX][\da-fA-F.]+(?:p[+-]?\d+)?|\d[\d']*(?:\.\d*)?(?:[eE][+-]?\d+)?)[uUlLfF]*)|(?<word>[A-Za-z_]\w*)/gm,
      k: set("alignas auto break case catch class const constexpr constinit continue decltype default delete do else enum explicit extern for friend goto if inline mutable namespace new noexcept operator private protected public return sizeof static static_assert static_cast reinterpret_cast const_cast struct switch template this throw try typedef typename union using virtual volatile while restrict __restrict__ __attribute__"),
      kt: set("bool char double float int long short signed unsigned void int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t size_t i8 i16 i32 i64 u8 u16 u32 u64 f32 f64"),
      kc: set("true false nullptr"),
      after: { struct: "nc", class: "nc" },
    },
    json: {
      rule: /(?<nt>"(?:\\.|[^"\\\n])*"(?=\s*:))|(?<s>"(?:\\.|[^"\\\n])*"?)|(?<mi>-?\b\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?<word>[A-Za-z]\w*)/g,
      kc: set("true false null NaN Infinity"),
    },
    guards: { rule: /(?<c1>[ \t]+#[^\n]*)|(?<gu>^(?:\| )*\+- )(?<word>[A-Za-z_]+)(?=:)|(?<s>'(?:\\.|[^'\\\n])*')/gm, guards: true },
  };
  const ofWord = (lang, word, before) => {
    if (lang.after && lang.after[before]) return lang.after[before];
    for (const kind of ["k", "kt", "kc", "nb"]) if (lang[kind] && lang[kind].has(word)) return kind;
    return "";
  };
  // Calls `emit(class, text)` for every piece of `text`, in order, none left out.
  argand.tokens = (text, language, emit) => {
    const lang = languages[language];
    if (!lang) { emit("", text); return; }
    let at = 0, before = "";
    for (const token of text.matchAll(lang.rule)) {
      if (token.index > at) emit("", text.slice(at, token.index));
      at = token.index + token[0].length;
      const groups = token.groups;
      if (lang.guards && groups.gu) {
        emit("gu", groups.gu);
        emit(groups.word.endsWith("Manager") ? "nc" : "k", groups.word);
      } else if (groups.block !== undefined) { // a long text inside a program is often another program
        const open = /^[a-zA-Z]*(?:'''|""")/.exec(groups.block)[0];
        const end = groups.block.length >= open.length + 3 && groups.block.endsWith(open.slice(-3)) ? 3 : 0;
        const inner = groups.block.slice(open.length, groups.block.length - end);
        if (inner.split("\n", 5).length < 5) emit("s", groups.block);
        else {
          emit("s", open);
          argand.tokens(inner, CPP.test(inner) ? "cpp" : "python", emit);
          if (end) emit("s", groups.block.slice(-end));
        }
      } else if (groups.word !== undefined) {
        emit(ofWord(lang, groups.word, before), groups.word);
        before = groups.word;
        continue;
      } else emit(Object.keys(groups).find((kind) => groups[kind] !== undefined), token[0]);
      before = "";
    }
    if (at < text.length) emit("", text.slice(at));
  };
  argand.ready((main) => {
    const pre = main.querySelector("pre.code[data-language]");
    if (!pre) return;
    const lines = [...pre.querySelectorAll(".l")];
    const fragments = [document.createDocumentFragment()];
    argand.tokens(lines.map((line) => line.textContent).join(""), pre.dataset.language, (kind, text) => {
      text.split("\n").forEach((part, number) => {
        if (number) { fragments[fragments.length - 1].append("\n"); fragments.push(document.createDocumentFragment()); }
        if (part) fragments[fragments.length - 1].append(kind ? argand.make("span", { class: kind }, part) : part);
      });
    });
    lines.forEach((line, number) => fragments[number] && line.replaceChildren(fragments[number]));
    delete pre.dataset.language;
  });
})();
