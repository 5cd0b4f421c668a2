//! Checks whether Envoy can load a Lua script. The top level of the script may only contain
//! definitions.
//!
//! Envoy runs a script once when it loads it, and rejects the whole listener if that fails. The
//! accepted language is smaller than Lua: constructs that could fail at load time, or that are
//! rarely used (`goto`), are rejected. Function bodies run with requests and may do anything (Lua
//! 5.1 Reference Manual, sections 2 and 8; LuaJIT, "Extensions").

/// Maximum length of a script in bytes. Within this length, constants and jumps fit into LuaJIT's
/// number ranges.
const BYTES_MAX: usize = 32 * 1024;
/// Maximum nesting depth. LuaJIT's limit is 200 levels, and one level here may be two of LuaJIT.
const DEPTH_MAX: usize = 80;
/// Maximum number of local names of a function. LuaJIT's limit is 200, including internal names of
/// loops.
const LOCALS_MAX: usize = 120;
/// Maximum number of names in enclosing functions. LuaJIT's limit is 60 used names.
const OUTER_MAX: usize = 60;
/// Maximum number of values in a list and of operators in a row. LuaJIT's limit is about 240
/// pending values.
const ROW_MAX: usize = 60;

const KEYWORDS: [&str; 22] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "goto", "if", "in",
    "local", "nil", "not", "or", "repeat", "return", "then", "true", "until", "while",
];

/// Binary operators, single-character ones last.
const BINARY: [&str; 15] =
    ["..", "==", "~=", "<=", ">=", "+", "-", "*", "/", "%", "^", "<", ">", "and", "or"];

/// Checks a script.
///
/// # Errors
/// A description of the fault with its line.
pub(super) fn check(script: &str) -> Result<(), String> {
    if script.len() > BYTES_MAX {
        return Err(format!("it has {} bytes, but the maximum is {BYTES_MAX}", script.len()));
    }
    let tokens = tokens(script)?;
    let mut parser = LuaParser { tokens: &tokens, at: 0, depth: 0, functions: Vec::new() };
    parser.script()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LuaToken<'a> {
    Name(&'a str),
    /// A keyword or a symbol.
    Sign(&'a str),
    Number,
    Text,
    End,
}

/// A token and the line number of the beginning.
type PlacedToken<'a> = (LuaToken<'a>, usize);

fn tokens(script: &str) -> Result<Vec<PlacedToken<'_>>, String> {
    let mut all = Vec::new();
    let (mut rest, mut line) = (script, 1);
    loop {
        rest = without_blanks(rest, &mut line)?;
        let Some(first) = rest.chars().next() else { break };
        let start = line;
        let (token, length) = if first.is_ascii_alphabetic() || first == '_' {
            let is_name_part = |one: char| one.is_ascii_alphanumeric() || one == '_';
            let length = rest.find(|one| !is_name_part(one)).unwrap_or(rest.len());
            let text = &rest[..length];
            let is_keyword = KEYWORDS.contains(&text);
            (if is_keyword { LuaToken::Sign(text) } else { LuaToken::Name(text) }, length)
        } else if first.is_ascii_digit()
            || (first == '.' && rest[1..].starts_with(|next: char| next.is_ascii_digit()))
        {
            (LuaToken::Number, number(rest).ok_or_else(|| in_line(start, "an invalid number"))?)
        } else if matches!(first, '"' | '\'') {
            (LuaToken::Text, quoted(rest).ok_or_else(|| in_line(start, "an unterminated string"))?)
        } else if let Some(length) = long_bracket(rest) {
            let length = length.map_err(|fact| in_line(start, fact))?;
            line += rest[..length].matches('\n').count();
            (LuaToken::Text, length)
        } else {
            let signs = [
                "...", "..", "==", "~=", "<=", ">=", "+", "-", "*", "/", "%", "^", "#", "<", ">",
                "=", "(", ")", "{", "}", "[", "]", ";", ":", ",", ".",
            ];
            let sign = signs.into_iter().find(|sign| rest.starts_with(sign));
            let sign = sign.ok_or_else(|| in_line(start, &format!("{first:?}")))?;
            (LuaToken::Sign(sign), sign.len())
        };
        all.push((token, start));
        rest = &rest[length..];
    }
    all.push((LuaToken::End, line));
    Ok(all)
}

fn in_line(line: usize, fact: &str) -> String {
    format!("line {line} has {fact}")
}

/// Returns the text after whitespace and comments.
fn without_blanks<'a>(mut rest: &'a str, line: &mut usize) -> Result<&'a str, String> {
    loop {
        let blank = rest.find(|one: char| !matches!(one, ' ' | '\t' | '\r' | '\n'));
        let (blanks, after) = rest.split_at(blank.unwrap_or(rest.len()));
        *line += blanks.matches('\n').count();
        rest = after;
        let Some(comment) = rest.strip_prefix("--") else { return Ok(rest) };
        let length = match long_bracket(comment) {
            Some(length) => length.map_err(|fact| in_line(*line, fact))?,
            None => comment.find('\n').unwrap_or(comment.len()),
        };
        *line += comment[..length].matches('\n').count();
        rest = &comment[length..];
    }
}

/// Returns the length of a long string (`[[…]]`, `[=[…]=]`) if one begins here.
fn long_bracket(rest: &str) -> Option<Result<usize, &'static str>> {
    let inner = rest.strip_prefix('[')?;
    let level = inner.len() - inner.trim_start_matches('=').len();
    inner[level..].strip_prefix('[')?;
    let close = format!("]{}]", "=".repeat(level));
    let end = rest.find(&close).map(|at| at + close.len());
    Some(end.ok_or("an unterminated string"))
}

/// Returns the length of a quoted string; `None` if it does not end in its line or has an invalid
/// escape.
fn quoted(rest: &str) -> Option<usize> {
    let quote = rest.chars().next()?;
    let mut chars = rest.char_indices().skip(1);
    while let Some((at, character)) = chars.next() {
        match character {
            '\\' => {
                let (_, escaped) = chars.next()?;
                let is_valid_escape = matches!(
                    escaped,
                    'a' | 'b' | 'f' | 'n' | 'r' | 't' | 'v' | '\\' | '"' | '\'' | '\n'
                );
                if escaped.is_ascii_digit() {
                    // A decimal escape has one to three digits and is at most 255. Only three
                    // digits can exceed that.
                    let digits: String =
                        rest[at + 1..].chars().take(3).take_while(char::is_ascii_digit).collect();
                    digits.parse::<u8>().ok()?;
                } else if !is_valid_escape {
                    return None;
                }
            }
            '\n' | '\r' => return None,
            _ if character == quote => return Some(at + quote.len_utf8()),
            _ => {}
        }
    }
    None
}

/// Returns the length of a number: decimal or hexadecimal, without LuaJIT's extensions.
fn number(rest: &str) -> Option<usize> {
    let digits = |text: &str, is: fn(&u8) -> bool| text.bytes().take_while(is).count();
    let length = if rest.starts_with("0x") || rest.starts_with("0X") {
        match digits(&rest[2..], u8::is_ascii_hexdigit) {
            0 => return None,
            count => 2 + count,
        }
    } else {
        let mut length = digits(rest, u8::is_ascii_digit);
        // `1..2` is a number followed by the concatenation operator, which Lua parses as an invalid
        // number.
        if rest[length..].starts_with('.') {
            length += 1 + digits(&rest[length + 1..], u8::is_ascii_digit);
        }
        if rest[length..].starts_with(['e', 'E']) {
            let sign = usize::from(rest[length + 1..].starts_with(['+', '-']));
            match digits(&rest[length + 1 + sign..], u8::is_ascii_digit) {
                0 => return None,
                count => length += 1 + sign + count,
            }
        }
        length
    };
    let is_more = |next: char| next.is_ascii_alphanumeric() || next == '_' || next == '.';
    (!rest[length..].starts_with(is_more)).then_some(length)
}

struct LuaParser<'a> {
    tokens: &'a [PlacedToken<'a>],
    at: usize,
    depth: usize,
    functions: Vec<FunctionScope>,
}

/// State of the function that is being parsed.
struct FunctionScope {
    /// Whether the function has variable arguments (`...`).
    takes_more: bool,
    /// Number of enclosing loops.
    loops: usize,
    /// Number of local names so far.
    locals: usize,
}

type LuaRead<T = ()> = Result<T, String>;

impl<'a> LuaParser<'a> {
    fn script(&mut self) -> LuaRead {
        self.functions.push(FunctionScope { takes_more: true, loops: 0, locals: 0 });
        while self.peek() != LuaToken::End {
            self.definition()?;
            self.takes(";");
        }
        Ok(())
    }

    /// Parses a top-level statement: the definition of a function or a constant.
    fn definition(&mut self) -> LuaRead {
        if self.takes("function") {
            self.name()?;
            return self.function_body();
        }
        let is_local = self.takes("local");
        if is_local && self.takes("function") {
            self.local()?;
            return self.function_body();
        }
        let is_name = matches!(self.peek(), LuaToken::Name(_));
        if !is_name {
            return Err(self.not_here("runs when the script is loaded; move it into a function"));
        }
        self.local()?;
        while self.takes(",") {
            self.local()?;
        }
        if self.takes("=") {
            self.constant()?;
            while self.takes(",") {
                self.constant()?;
            }
            Ok(())
        } else if is_local {
            Ok(())
        } else {
            Err(self.not_here("runs when the script is loaded; move it into a function"))
        }
    }

    /// Parses a value that cannot fail at load time.
    fn constant(&mut self) -> LuaRead {
        match self.peek() {
            LuaToken::Number | LuaToken::Text | LuaToken::Name(_) => self.at += 1,
            LuaToken::Sign("nil" | "true" | "false") => self.at += 1,
            LuaToken::Sign("-") if self.after() == LuaToken::Number => self.at += 2,
            LuaToken::Sign("function") => {
                self.at += 1;
                self.function_body()?;
            }
            LuaToken::Sign("{") => return self.deeper(Self::constant_table),
            _ => {
                return Err(self.not_here("is not a constant, but runs when the script is loaded"));
            }
        }
        // The next token must not continue the value.
        match self.peek() {
            LuaToken::Sign(sign)
                if BINARY.contains(&sign) || matches!(sign, "(" | "[" | "." | ":") =>
            {
                Err(self.not_here("runs when the script is loaded; move it into a function"))
            }
            LuaToken::Text => {
                Err(self.not_here("runs when the script is loaded; move it into a function"))
            }
            LuaToken::Sign("{") => {
                Err(self.not_here("runs when the script is loaded; move it into a function"))
            }
            _ => Ok(()),
        }
    }

    fn constant_table(&mut self) -> LuaRead {
        self.expect("{")?;
        while self.peek() != LuaToken::Sign("}") {
            if self.takes("[") {
                if !matches!(self.peek(), LuaToken::Number | LuaToken::Text) {
                    return Err(self.not_here("is not a constant key"));
                }
                self.at += 1;
                self.expect("]")?;
                self.expect("=")?;
            } else if matches!(self.peek(), LuaToken::Name(_))
                && self.after() == LuaToken::Sign("=")
            {
                self.at += 2;
            }
            self.constant()?;
            if !self.takes(",") && !self.takes(";") {
                break;
            }
        }
        self.expect("}")
    }

    fn block(&mut self) -> LuaRead {
        loop {
            match self.peek() {
                LuaToken::End | LuaToken::Sign("end" | "else" | "elseif" | "until") => {
                    return Ok(());
                }
                LuaToken::Sign("return") => {
                    self.at += 1;
                    let is_bare = matches!(
                        self.peek(),
                        LuaToken::End | LuaToken::Sign("end" | "else" | "elseif" | "until" | ";")
                    );
                    if !is_bare {
                        self.expressions()?;
                    }
                    self.takes(";");
                    return Ok(());
                }
                LuaToken::Sign("break") => {
                    if self.functions.last().is_none_or(|function| function.loops == 0) {
                        return Err(self.not_here("is not in a loop"));
                    }
                    self.at += 1;
                    self.takes(";");
                    return Ok(());
                }
                _ => {
                    self.deeper(Self::statement)?;
                    self.takes(";");
                }
            }
        }
    }

    fn statement(&mut self) -> LuaRead {
        match self.peek() {
            LuaToken::Sign("if") => {
                self.at += 1;
                self.condition("then")?;
                loop {
                    self.block()?;
                    if self.takes("elseif") {
                        self.condition("then")?;
                    } else if self.takes("else") {
                        self.block()?;
                        return self.expect("end");
                    } else {
                        return self.expect("end");
                    }
                }
            }
            LuaToken::Sign("while") => {
                self.at += 1;
                self.condition("do")?;
                self.looped("end")
            }
            LuaToken::Sign("do") => {
                self.at += 1;
                self.block()?;
                self.expect("end")
            }
            LuaToken::Sign("for") => {
                self.at += 1;
                self.local()?;
                if self.takes("=") {
                    self.expression()?;
                    self.expect(",")?;
                    self.expression()?;
                    if self.takes(",") {
                        self.expression()?;
                    }
                } else {
                    while self.takes(",") {
                        self.local()?;
                    }
                    self.expect("in")?;
                    self.expressions()?;
                }
                self.expect("do")?;
                self.looped("end")
            }
            LuaToken::Sign("repeat") => {
                self.at += 1;
                self.looped("until")?;
                self.expression()
            }
            LuaToken::Sign("function") => {
                self.at += 1;
                self.name()?;
                while self.takes(".") {
                    self.name()?;
                }
                if self.takes(":") {
                    self.name()?;
                }
                self.function_body()
            }
            LuaToken::Sign("local") => {
                self.at += 1;
                if self.takes("function") {
                    self.local()?;
                    return self.function_body();
                }
                self.local()?;
                while self.takes(",") {
                    self.local()?;
                }
                if self.takes("=") { self.expressions() } else { Ok(()) }
            }
            _ => self.assignment_or_call(),
        }
    }

    fn condition(&mut self, before: &str) -> LuaRead {
        self.expression()?;
        self.expect(before)
    }

    fn looped(&mut self, end: &str) -> LuaRead {
        self.function().loops += 1;
        self.block()?;
        self.function().loops -= 1;
        self.expect(end)
    }

    fn assignment_or_call(&mut self) -> LuaRead {
        let mut kind = self.suffixed()?;
        let mut places = 1;
        while kind == Suffixed::Place && self.takes(",") {
            kind = self.suffixed()?;
            places += 1;
        }
        match kind {
            Suffixed::Place => {
                self.expect("=")?;
                self.expressions()
            }
            Suffixed::Call if places == 1 => Ok(()),
            _ => Err(self.not_here("follows an expression that is neither a call nor assignable")),
        }
    }

    fn expressions(&mut self) -> LuaRead {
        self.expression()?;
        let mut count = 1;
        while self.takes(",") {
            self.expression()?;
            count += 1;
            if count > ROW_MAX {
                return Err(self.not_here(&format!("follows more than {ROW_MAX} values")));
            }
        }
        Ok(())
    }

    fn expression(&mut self) -> LuaRead {
        self.deeper(|parser| {
            for _ in 0..ROW_MAX {
                while matches!(parser.peek(), LuaToken::Sign("not" | "-" | "#")) {
                    parser.at += 1;
                }
                parser.simple()?;
                match parser.peek() {
                    LuaToken::Sign(sign) if BINARY.contains(&sign) => parser.at += 1,
                    _ => return Ok(()),
                }
            }
            Err(parser.not_here(&format!("follows more than {ROW_MAX} operators")))
        })
    }

    fn simple(&mut self) -> LuaRead {
        match self.peek() {
            LuaToken::Number | LuaToken::Text | LuaToken::Sign("nil" | "true" | "false") => {
                self.at += 1;
            }
            LuaToken::Sign("...") => {
                if self.functions.last().is_none_or(|function| !function.takes_more) {
                    return Err(self.not_here("is not in a function with variable arguments"));
                }
                self.at += 1;
            }
            LuaToken::Sign("{") => self.table()?,
            LuaToken::Sign("function") => {
                self.at += 1;
                self.function_body()?;
            }
            _ => drop(self.suffixed()?),
        }
        Ok(())
    }

    /// Parses a name or an expression in parentheses, with its suffixes.
    fn suffixed(&mut self) -> LuaRead<Suffixed> {
        let mut kind = match self.peek() {
            LuaToken::Name(_) => {
                self.at += 1;
                Suffixed::Place
            }
            LuaToken::Sign("(") => {
                self.at += 1;
                self.expression()?;
                self.expect(")")?;
                Suffixed::Value
            }
            _ => return Err(self.not_here("is not valid here")),
        };
        loop {
            match self.peek() {
                LuaToken::Sign(".") => {
                    self.at += 1;
                    self.name()?;
                    kind = Suffixed::Place;
                }
                LuaToken::Sign("[") => {
                    self.at += 1;
                    self.expression()?;
                    self.expect("]")?;
                    kind = Suffixed::Place;
                }
                LuaToken::Sign(":") => {
                    self.at += 1;
                    self.name()?;
                    self.arguments()?;
                    kind = Suffixed::Call;
                }
                LuaToken::Sign("(" | "{") | LuaToken::Text => {
                    self.arguments()?;
                    kind = Suffixed::Call;
                }
                _ => return Ok(kind),
            }
        }
    }

    fn arguments(&mut self) -> LuaRead {
        match self.peek() {
            LuaToken::Text => self.at += 1,
            LuaToken::Sign("{") => self.table()?,
            LuaToken::Sign("(") => {
                // Lua cannot decide whether the parenthesis begins a new statement.
                if self.at > 0 && self.tokens[self.at - 1].1 != self.tokens[self.at].1 {
                    return Err(self.not_here("is on another line than the function that it calls"));
                }
                self.at += 1;
                if !self.takes(")") {
                    self.expressions()?;
                    self.expect(")")?;
                }
            }
            _ => return Err(self.not_here("does not begin arguments")),
        }
        Ok(())
    }

    fn table(&mut self) -> LuaRead {
        self.deeper(|parser| {
            parser.expect("{")?;
            while parser.peek() != LuaToken::Sign("}") {
                if parser.takes("[") {
                    parser.expression()?;
                    parser.expect("]")?;
                    parser.expect("=")?;
                } else if matches!(parser.peek(), LuaToken::Name(_))
                    && parser.after() == LuaToken::Sign("=")
                {
                    parser.at += 2;
                }
                parser.expression()?;
                if !parser.takes(",") && !parser.takes(";") {
                    break;
                }
            }
            parser.expect("}")
        })
    }

    fn function_body(&mut self) -> LuaRead {
        let outer: usize = self.functions.iter().map(|function| function.locals).sum();
        if outer > OUTER_MAX {
            let fact = format!("is in functions with more than {OUTER_MAX} local names");
            return Err(self.not_here(&fact));
        }
        self.deeper(|parser| {
            parser.functions.push(FunctionScope { takes_more: false, loops: 0, locals: 1 });
            parser.expect("(")?;
            if !parser.takes(")") {
                loop {
                    if parser.takes("...") {
                        parser.function().takes_more = true;
                        break;
                    }
                    parser.local()?;
                    if !parser.takes(",") {
                        break;
                    }
                }
                parser.expect(")")?;
            }
            parser.block()?;
            parser.functions.pop();
            parser.expect("end")
        })
    }

    fn function(&mut self) -> &mut FunctionScope {
        self.functions.last_mut().expect("the script is one")
    }

    /// Parses a local name of the function.
    fn local(&mut self) -> LuaRead {
        self.name()?;
        self.function().locals += 1;
        if self.function().locals > LOCALS_MAX {
            return Err(format!("a function has more than {LOCALS_MAX} local names"));
        }
        Ok(())
    }

    fn name(&mut self) -> LuaRead {
        match self.peek() {
            LuaToken::Name(_) => {
                self.at += 1;
                Ok(())
            }
            _ => Err(self.not_here("is found where a name is expected")),
        }
    }

    fn deeper(&mut self, read: impl FnOnce(&mut Self) -> LuaRead) -> LuaRead {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(format!("it nests deeper than {DEPTH_MAX} levels"));
        }
        read(self)?;
        self.depth -= 1;
        Ok(())
    }

    fn peek(&self) -> LuaToken<'a> {
        self.tokens.get(self.at).map_or(LuaToken::End, |(token, _)| *token)
    }

    fn after(&self) -> LuaToken<'a> {
        self.tokens.get(self.at + 1).map_or(LuaToken::End, |(token, _)| *token)
    }

    fn takes(&mut self, sign: &str) -> bool {
        let takes = matches!(self.peek(), LuaToken::Sign(found) if found == sign);
        self.at += usize::from(takes);
        takes
    }

    fn expect(&mut self, sign: &str) -> LuaRead {
        if self.takes(sign) {
            Ok(())
        } else {
            Err(self.not_here(&format!("is found where {sign} is expected")))
        }
    }

    fn not_here(&self, fact: &str) -> String {
        let last = self.tokens.last().map_or(1, |(_, line)| *line);
        let line = self.tokens.get(self.at).map_or(last, |(_, line)| *line);
        let what = match self.peek() {
            LuaToken::Name(name) | LuaToken::Sign(name) => name,
            LuaToken::Number => "a number",
            LuaToken::Text => "a string",
            LuaToken::End => "the end",
        };
        format!("line {line}: {what} {fact}")
    }
}

/// Kind of a name with its suffixes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Suffixed {
    /// An assignable expression.
    Place,
    Call,
    Value,
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn scripts_with_only_definitions_are_accepted() {
        for script in [
            "",
            "-- nothing\n--[[ more\nof it ]]",
            "function envoy_on_request(handle)\n  handle:headers():add('x', \"y\")\nend",
            "local seen = {}\nLIMIT = -5\nlocal a, b = 1, 'x';\nlocal t = { 1, x = 'y', ['z'] = { 2; 3 }, f = function() end }\n\
             local function help(h, ...)\n  local n = select('#', ...)\n  for i = 1, n, 2 do seen[i] = i * 2 ^ 3 .. '' end\n\
               for k, v in pairs(t) do if k == 'x' then break end end\n  while n > 0 and not seen[n] do n = n - 1 end\n\
               repeat n = n + 1 until n >= 3\n  return h.a.b['c']:d{1}, [==[ ]] ]==], ...\nend\n\
             function envoy_on_response(handle)\n  if handle == nil then return elseif 1 ~= 2 then a = #t else b = 0x1F + 1e-3 end\n\
               help (handle, a)\n  t.x, t.y = t.y, t.x\n  do local z = 1 <= 2 end\nend",
        ] {
            assert_eq!(check(script), Ok(()), "{script}");
        }
    }

    #[test]
    fn scripts_that_envoy_may_reject_are_rejected() {
        for (script, wanted) in [
            ("function f(", "line 1: the end is found where a name is expected"),
            ("function f() return 1", "line 1: the end is found where end is expected"),
            ("function f() x = end", "line 1: end is not valid here"),
            ("function f() f end", "line 1: end is found where = is expected"),
            ("function f() break end", "line 1: break is not in a loop"),
            (
                "function f() return ... end",
                "line 1: ... is not in a function with variable arguments",
            ),
            ("function f() goto x end", "line 1: goto is not valid here"),
            ("function f() ; end", "line 1: ; is not valid here"),
            (
                "function f() a = b\n(c)() end",
                "line 2: ( is on another line than the function that it calls",
            ),
            ("function f() x = 'a\nb' end", "line 1 has an unterminated string"),
            ("function f() x = '\\q' end", "line 1 has an unterminated string"),
            ("function f() x = '\\999' end", "line 1 has an unterminated string"),
            ("function f() x = 1..2 end", "line 1 has an invalid number"),
            ("function f() x = 12ab end", "line 1 has an invalid number"),
            ("function f() x = [[ end", "line 1 has an unterminated string"),
            ("function f() x = a ! b end", "line 1 has '!'"),
            (
                "function f() end end",
                "line 1: end runs when the script is loaded; move it into a function",
            ),
            ("print(1)", "line 1: ( runs when the script is loaded; move it into a function"),
            (
                "local x = require('y')",
                "line 1: ( runs when the script is loaded; move it into a function",
            ),
            ("local x = y.z", "line 1: . runs when the script is loaded; move it into a function"),
            (
                "local x = { y.z }",
                "line 1: . runs when the script is loaded; move it into a function",
            ),
            (
                "local x = 1 .. {}",
                "line 1: .. runs when the script is loaded; move it into a function",
            ),
            ("local x = -y", "line 1: - is not a constant, but runs when the script is loaded"),
            ("function a.b() end", "line 1: . is found where ( is expected"),
            ("x", "line 1: the end runs when the script is loaded; move it into a function"),
        ] {
            assert_eq!(check(script).expect_err(script), wanted, "{script}");
        }
        let deep = format!("x = {}1{}", "{".repeat(100), "}".repeat(100));
        assert!(check(&deep).is_err_and(|fact| fact.contains("nests deeper")));
        assert!(check(&"x".repeat(40_000)).is_err_and(|fact| fact.contains("bytes")));
    }
}
