//! Whether Envoys can read an expression of CEL. (Common Expression Language, "Language Definition"; Envoy, access log
//! filter `envoy.access_loggers.extension_filters.cel`.)
//!
//! One that they can't read makes them refuse the whole listener. Which attributes there are doesn't matter for that: one
//! that is not there is an error where a request is looked at, and that request isn't written.

/// Functions and macros that Envoys know, each tried on Envoy 1.36 and 1.40. Those over lists, and `string`, are switched off
/// there.
const FUNCTIONS: [&str; 14] = [
    "bytes",
    "contains",
    "double",
    "duration",
    "dyn",
    "endsWith",
    "has",
    "int",
    "matches",
    "size",
    "startsWith",
    "timestamp",
    "type",
    "uint",
];

/// Words that name nothing.
const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "namespace",
    "package",
    "return",
    "var",
    "void",
    "while",
];

/// How deep expressions stand in one another.
const DEPTH_MAX: usize = 32;
/// Bytes of an expression.
const BYTES_MAX: usize = 4096;

/// Checks an expression.
///
/// # Errors
/// What is wrong with it, in words.
pub(super) fn check(text: &str) -> Result<(), String> {
    if text.len() > BYTES_MAX {
        return Err(format!("is longer than {BYTES_MAX} bytes"));
    }
    let tokens = tokens(text)?;
    let mut parser = Parser { rest: &tokens, depth: 0 };
    parser.expression()?;
    match parser.rest.first() {
        None => Ok(()),
        Some(token) => Err(format!("goes on with {token} where it could end")),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CelToken<'a> {
    Name(&'a str),
    Literal(&'a str),
    Sign(&'a str),
}

impl std::fmt::Display for CelToken<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Name(text) | Self::Literal(text) | Self::Sign(text)) = self;
        write!(f, "{text:?}")
    }
}

/// The longest come first.
const SIGNS: [&str; 23] = [
    "&&", "||", "==", "!=", "<=", ">=", "<", ">", "!", "?", ":", "+", "-", "*", "/", "%", "(", ")",
    "[", "]", "{", "}", ",",
];

fn tokens<'a>(text: &'a str) -> Result<Vec<CelToken<'a>>, String> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let (token, len): (fn(&'a str) -> CelToken<'a>, _) = if let Some(len) = quoted(rest)? {
            (CelToken::Literal, len)
        } else if first.is_ascii_alphabetic() || first == '_' {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            (CelToken::Name, end.unwrap_or(rest.len()))
        } else if first.is_ascii_digit() {
            (CelToken::Literal, number(rest)?)
        } else if first == '.' {
            (CelToken::Sign, 1)
        } else if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            (CelToken::Sign, sign.len())
        } else {
            return Err(format!("has {first:?}, which means nothing"));
        };
        let (text, behind) = rest.split_at(len);
        found.push(token(text));
        rest = behind.trim_start();
    }
    Ok(found)
}

/// The length of a text in quotes that it begins with.
fn quoted(rest: &str) -> Result<Option<usize>, String> {
    let prefix = rest.find(|c: char| !matches!(c, 'r' | 'R' | 'b' | 'B')).unwrap_or(rest.len());
    let (letters, body) = rest.split_at(prefix);
    let Some(quote) = body.chars().next().filter(|c| matches!(c, '"' | '\'')) else {
        return Ok(None);
    };
    if prefix > 2 {
        return Err(format!("has {letters:?} before a quote"));
    }
    let is_raw = letters.contains(['r', 'R']);
    let triple = quote.to_string().repeat(3);
    let end = if body.starts_with(&triple) { triple } else { quote.to_string() };
    let mut at = end.len();
    loop {
        let Some(behind) = body.get(at..).filter(|behind| !behind.is_empty()) else {
            return Err("has a text whose quote isn't closed".to_owned());
        };
        if behind.starts_with(&end) {
            return Ok(Some(prefix + at + end.len()));
        }
        let mut chars = behind.chars();
        let next = chars.next().expect("not empty");
        if next == '\n' && end.len() == 1 {
            return Err("has a text whose quote isn't closed on its line".to_owned());
        }
        at += next.len_utf8();
        if next == '\\' && !is_raw {
            at += escaped(chars.as_str())?;
        }
    }
}

/// The length of what stands behind a backslash.
fn escaped(rest: &str) -> Result<usize, String> {
    let digits = |from: usize, count: usize, radix: u32| {
        let text = rest.get(from..from + count);
        text.is_some_and(|text| text.chars().all(|c| c.is_digit(radix))).then_some(from + count)
    };
    let found = match rest.chars().next() {
        Some('a' | 'b' | 'f' | 'n' | 'r' | 't' | 'v' | '\\' | '\'' | '"' | '`' | '?') => Some(1),
        Some('x' | 'X') => digits(1, 2, 16),
        Some('u') => digits(1, 4, 16),
        Some('U') => digits(1, 8, 16),
        Some('0'..='3') => digits(0, 3, 8),
        _ => None,
    };
    found.ok_or_else(|| "has a backslash before what it can't escape".to_owned())
}

/// The length of a number.
fn number(rest: &str) -> Result<usize, String> {
    let run = |from: usize, is: fn(char) -> bool| {
        let behind = rest.get(from..).unwrap_or("");
        from + behind.find(|c| !is(c)).unwrap_or(behind.len())
    };
    let is_digit: fn(char) -> bool = |c| c.is_ascii_digit();
    if rest.starts_with("0x") || rest.starts_with("0X") {
        let end = run(2, |c| c.is_ascii_hexdigit());
        let fits = rest.get(2..end).is_some_and(|digits| (1..=15).contains(&digits.len()));
        return if fits {
            Ok(unsigned(rest, end))
        } else {
            Err("has a number too large".to_owned())
        };
    }
    let whole = run(0, is_digit);
    let mut end = whole;
    if rest.get(end..).is_some_and(|rest| rest.starts_with('.')) && run(end + 1, is_digit) > end + 1
    {
        end = run(end + 1, is_digit);
    }
    if rest.get(end..).is_some_and(|rest| rest.starts_with(['e', 'E'])) {
        let signed = rest.get(end + 1..).is_some_and(|rest| rest.starts_with(['+', '-']));
        let from = end + 1 + usize::from(signed);
        if run(from, is_digit) == from {
            return Err("has a number without its exponent".to_owned());
        }
        end = run(from, is_digit);
    }
    if end > whole {
        return Ok(end);
    }
    match rest.get(..whole).map(str::parse::<i64>) {
        Some(Ok(_)) => Ok(unsigned(rest, end)),
        _ => Err("has a number too large".to_owned()),
    }
}

/// With the letter that makes it unsigned.
fn unsigned(rest: &str, end: usize) -> usize {
    end + usize::from(rest.get(end..).is_some_and(|rest| rest.starts_with(['u', 'U'])))
}

/// By recursive descent. Which operator binds closer is no matter here.
struct Parser<'t, 'a> {
    rest: &'t [CelToken<'a>],
    depth: usize,
}

impl Parser<'_, '_> {
    fn takes(&mut self, sign: &str) -> bool {
        let found = self.rest.first() == Some(&CelToken::Sign(sign));
        if found {
            self.rest = &self.rest[1..];
        }
        found
    }

    fn needs(&mut self, sign: &str) -> Result<(), String> {
        if self.takes(sign) {
            return Ok(());
        }
        let found = self.rest.first().map_or("its end".to_owned(), ToString::to_string);
        Err(format!("has {found} where {sign:?} is missing"))
    }

    fn expression(&mut self) -> Result<(), String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(format!("stands more than {DEPTH_MAX} deep in itself"));
        }
        self.operands()?;
        if self.takes("?") {
            self.operands()?;
            self.needs(":")?;
            self.expression()?;
        }
        self.depth -= 1;
        Ok(())
    }

    /// Members with operators between them.
    fn operands(&mut self) -> Result<(), String> {
        const BETWEEN: [&str; 13] =
            ["||", "&&", "<=", ">=", "<", ">", "==", "!=", "+", "-", "*", "/", "%"];
        loop {
            self.member()?;
            let goes_on = match self.rest.first() {
                Some(CelToken::Sign(sign)) => BETWEEN.contains(sign),
                Some(CelToken::Name(name)) => *name == "in",
                _ => false,
            };
            if !goes_on {
                return Ok(());
            }
            self.rest = &self.rest[1..];
        }
    }

    fn member(&mut self) -> Result<(), String> {
        if self.takes("!") {
            while self.takes("!") {}
        } else {
            while self.takes("-") {}
        }
        self.primary()?;
        loop {
            if self.takes(".") {
                self.named()?;
            } else if self.takes("[") {
                self.expression()?;
                self.needs("]")?;
            } else {
                return Ok(());
            }
        }
    }

    fn primary(&mut self) -> Result<(), String> {
        if self.takes("(") {
            self.expression()?;
            return self.needs(")");
        }
        if self.takes("[") {
            return self.list("]", Self::expression);
        }
        if self.takes("{") {
            return self.list("}", |parser| {
                parser.expression()?;
                parser.needs(":")?;
                parser.expression()
            });
        }
        if let Some(CelToken::Literal(_)) = self.rest.first() {
            self.rest = &self.rest[1..];
            return Ok(());
        }
        self.takes(".");
        self.named()
    }

    /// A name, or a call of it.
    fn named(&mut self) -> Result<(), String> {
        let Some((CelToken::Name(name), behind)) = self.rest.split_first() else {
            let found = self.rest.first().map_or("ends".to_owned(), |token| format!("has {token}"));
            return Err(format!("{found} where a value is missing"));
        };
        if *name == "in" || RESERVED.contains(name) {
            return Err(format!("has {name:?}, which can't be a name"));
        }
        self.rest = behind;
        if self.takes("(") {
            if !FUNCTIONS.contains(name) {
                return Err(format!("calls {name}, which not every Envoy knows"));
            }
            return match *name {
                "has" => self.selected_field(),
                _ => self.list(")", Self::expression),
            };
        }
        Ok(())
    }

    /// What `has` takes: a field of something, and nothing around it.
    fn selected_field(&mut self) -> Result<(), String> {
        let mut is_field = false;
        self.primary()?;
        loop {
            if self.takes(".") {
                is_field = self.rest.get(1) != Some(&CelToken::Sign("("));
                self.named()?;
            } else if self.takes("[") {
                is_field = false;
                self.expression()?;
                self.needs("]")?;
            } else if is_field {
                return self.needs(")");
            } else {
                return Err("asks has() of something else than a field, as in has(a.b)".to_owned());
            }
        }
    }

    fn list(
        &mut self,
        end: &str,
        mut one: impl FnMut(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        while !self.takes(end) {
            one(self)?;
            if !self.takes(",") {
                return self.needs(end);
            }
        }
        Ok(())
    }
}

/// Expressions that Envoys read, together with every function.
#[cfg(test)]
pub const READABLE: [&str; 15] = [
    "response.code >= 400",
    "(connection.mtls && request.headers['x-log-mtls'] == 'true') || request.url_path.contains('v1beta3')",
    "!has(request.headers.a) ? true : request.size > 10u",
    "request.method in ['GET', \"POST\"] && !(response.code == 200)",
    "xds.cluster_name.startsWith('outbound|') || request.path.endsWith('''it's''')",
    "request.path.matches(r'^/a\\d+$')",
    "size(request.headers) > 3 && int('3') - -2 == 5",
    "[1, 2].size() == 2 && has(request.headers['a'].b)",
    "double(1) < 1.5e3 && uint(2) == 2u && bytes('a') == b'a'",
    "request.duration > duration('1s') && request.time > timestamp('2020-01-01T00:00:00Z')",
    "type(1) == int && dyn(1) == 1",
    "{'a': 1}['a'] == 1 && \"\\u00e9\\x41\\101\\n\" != null",
    "0x1F > 3 % 2",
    "response.flags != 0 && response.code_details.contains('upstream')",
    "true",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_envoys_read_is_taken() {
        for text in READABLE {
            assert_eq!(check(text), Ok(()), "{text}");
        }
        for name in FUNCTIONS {
            let call = format!("{name}(");
            assert!(READABLE.iter().any(|text| text.contains(&call)), "{name} is in no example");
        }
    }

    #[test]
    fn what_no_envoy_reads_is_refused_with_the_place() {
        for (text, part) in [
            ("", "ends where a value"),
            ("response.code >=", "ends where a value"),
            ("response.code => 400", "'='"),
            ("(a", "\")\" is missing"),
            ("a b", "goes on with \"b\""),
            ("a ? b", "\":\" is missing"),
            ("a.b(", "calls b"),
            ("nothing(1)", "calls nothing"),
            ("[1].all(x, x == 1)", "calls all"),
            ("string(1) == '1'", "calls string"),
            ("has(request.headers['a'])", "has()"),
            ("has(a)", "has()"),
            ("has(a.size())", "has()"),
            ("has(a.b + 1)", "\")\" is missing"),
            ("'a", "isn't closed"),
            ("'\\q'", "backslash"),
            ("a && for", "\"for\""),
            ("a.in", "\"in\""),
            ("99999999999999999999 > 1", "too large"),
            ("1e > 1", "exponent"),
            ("a # b", "means nothing"),
            ("[1, 2", "\"]\" is missing"),
            ("{1}", "\":\" is missing"),
        ] {
            let fact = check(text).expect_err(text);
            assert!(fact.contains(part), "{text}: {fact}");
        }
        assert!(check(&format!("{}1{}", "(".repeat(40), ")".repeat(40))).is_err());
        assert!(check(&format!("'{}'", "a".repeat(5000))).is_err());
    }
}
