//! Whether Envoys can read an expression of CEL. (Common Expression Language, "Language Definition"; Envoy, access log
//! filter `envoy.access_loggers.extension_filters.cel`; tried on Envoy 1.36 and 1.40.)
//!
//! One that they can't read makes them refuse the whole listener. Which attributes there are doesn't matter for that: one
//! that is not there is an error where a request is looked at, and that request isn't written. This is stricter than
//! Envoys where the language is rarely used: comments, names in backticks and messages are refused.

mod attributes;
mod tokens;

use self::tokens::{CelToken, tokens};
use crate::traffic::re2;

/// How a function is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CelForm {
    /// `name(a)`, with so many values.
    Global(usize),
    /// `name(a, b)`, with so many values, or `a.name(b)`.
    Either(usize),
}

/// Functions that Envoys know. Those over lists, and `string`, are switched off there. `has` is none: it is a macro.
const FUNCTIONS: [(&str, CelForm); 13] = [
    ("bytes", CelForm::Global(1)),
    ("contains", CelForm::Either(2)),
    ("double", CelForm::Global(1)),
    ("duration", CelForm::Global(1)),
    ("dyn", CelForm::Global(1)),
    ("endsWith", CelForm::Either(2)),
    ("int", CelForm::Global(1)),
    ("matches", CelForm::Either(2)),
    ("size", CelForm::Either(1)),
    ("startsWith", CelForm::Either(2)),
    ("timestamp", CelForm::Global(1)),
    ("type", CelForm::Global(1)),
    ("uint", CelForm::Global(1)),
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

/// Words that are values.
const VALUES: [&str; 3] = ["false", "null", "true"];

/// How deep an expression is at most: each operator, selection, index and call is one deeper than what it works on, so
/// that `1 + 1 + 1` is 3 deep. A whole chain of `||` or `&&` is one. (cel-cpp, `max_recursion_depth`, as Envoys set it.)
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
    let mut parser = Parser { rest: &tokens, nested: 0 };
    let depth = parser.expression()?;
    match parser.rest.first() {
        None if depth > DEPTH_MAX => Err(too_deep()),
        None => Ok(()),
        Some(token) => Err(format!("goes on with {token} where it could end")),
    }
}

/// Returns the first name in a valid expression that is no attribute of an Envoy, such as a misspelt one.
pub(super) fn unknown_attribute(text: &str) -> Option<String> {
    attributes::unknown(&tokens(text).ok()?)
}

fn too_deep() -> String {
    format!("is more than {DEPTH_MAX} operators, selections or calls deep")
}

/// By recursive descent; what reads a part gives how deep it is. Of operators but `||` and `&&` it doesn't matter which
/// binds closer: a chain of them is taken for as deep as it can be.
struct Parser<'t, 'a> {
    rest: &'t [CelToken<'a>],
    /// How many expressions are being read within each other.
    nested: usize,
}

impl<'t, 'a> Parser<'t, 'a> {
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

    fn expression(&mut self) -> Result<usize, String> {
        self.nested += 1;
        if self.nested > DEPTH_MAX {
            return Err(too_deep());
        }
        let mut depth = self.any_of()?;
        if self.takes("?") {
            let then = self.any_of()?;
            self.needs(":")?;
            depth = 1 + depth.max(then).max(self.expression()?);
        }
        self.nested -= 1;
        Ok(depth)
    }

    fn any_of(&mut self) -> Result<usize, String> {
        self.joined("||", Self::all_of)
    }

    fn all_of(&mut self) -> Result<usize, String> {
        self.joined("&&", Self::operands)
    }

    /// Parts with one sign between them.
    fn joined(
        &mut self,
        sign: &str,
        part: impl Fn(&mut Self) -> Result<usize, String>,
    ) -> Result<usize, String> {
        let mut depth = part(self)?;
        let is_alone = self.rest.first() != Some(&CelToken::Sign(sign));
        while self.takes(sign) {
            depth = depth.max(part(self)?);
        }
        Ok(depth + usize::from(!is_alone))
    }

    /// Members with operators between them.
    fn operands(&mut self) -> Result<usize, String> {
        const BETWEEN: [&str; 11] = ["<=", ">=", "<", ">", "==", "!=", "+", "-", "*", "/", "%"];
        let mut deepest = self.member()?;
        let mut operators = 0;
        loop {
            let goes_on = match self.rest.first() {
                Some(CelToken::Sign(sign)) => BETWEEN.contains(sign),
                Some(CelToken::Name(name)) => *name == "in",
                _ => false,
            };
            if !goes_on {
                return Ok(operators + deepest);
            }
            self.rest = &self.rest[1..];
            operators += 1;
            deepest = deepest.max(self.member()?);
        }
    }

    fn member(&mut self) -> Result<usize, String> {
        let before = self.rest.len();
        if self.takes("!") {
            while self.takes("!") {}
        } else {
            while self.takes("-") {}
        }
        let is_turned = self.rest.len() < before;
        Ok(self.selected()?.depth + usize::from(is_turned))
    }

    /// A value, and what is selected of it.
    fn selected(&mut self) -> Result<CelSelection, String> {
        let mut found = CelSelection { depth: self.primary()?, is_field: false };
        loop {
            if self.takes(".") {
                let name = self.field()?;
                let is_field = !self.takes("(");
                let depth =
                    if is_field { found.depth } else { self.call(name, Some(found.depth))? };
                found = CelSelection { depth: 1 + depth, is_field };
            } else if self.takes("[") {
                let depth = 1 + found.depth.max(self.expression()?);
                self.needs("]")?;
                found = CelSelection { depth, is_field: false };
            } else {
                return Ok(found);
            }
        }
    }

    fn primary(&mut self) -> Result<usize, String> {
        if self.takes("(") {
            let depth = self.expression()?;
            self.needs(")")?;
            return Ok(depth);
        }
        if self.takes("[") {
            return Ok(1 + self.list("]", Self::expression)?);
        }
        if self.takes("{") {
            let entries = self.list("}", |parser| {
                let key = parser.expression()?;
                parser.needs(":")?;
                Ok(key.max(parser.expression()?))
            })?;
            return Ok(1 + entries);
        }
        if let Some(CelToken::Literal(_) | CelToken::Text { .. }) = self.rest.first() {
            self.rest = &self.rest[1..];
            return Ok(1);
        }
        if self.takes(".") {
            self.field()?;
            return Ok(1);
        }
        let name = self.name()?;
        if !self.takes("(") {
            return Ok(1);
        }
        let depth = if name == "has" { self.asked_field()? } else { self.call(name, None)? };
        Ok(1 + depth)
    }

    fn name(&mut self) -> Result<&'a str, String> {
        let Some((CelToken::Name(name), behind)) = self.rest.split_first() else {
            let found = self.rest.first().map_or("ends".to_owned(), |token| format!("has {token}"));
            return Err(format!("{found} where a value is missing"));
        };
        if *name == "in" || RESERVED.contains(name) {
            return Err(format!("has {name:?}, which can't be a name"));
        }
        self.rest = behind;
        Ok(*name)
    }

    /// What stands behind a dot.
    fn field(&mut self) -> Result<&'a str, String> {
        let name = self.name()?;
        if VALUES.contains(&name) {
            return Err(format!("has {name:?} behind a dot, where it can't be a name"));
        }
        Ok(name)
    }

    /// What `has` takes: a field of something, and nothing around it.
    fn asked_field(&mut self) -> Result<usize, String> {
        let found = self.selected()?;
        if !found.is_field {
            return Err("asks has() of something else than a field, as in has(a.b)".to_owned());
        }
        self.needs(")")?;
        Ok(found.depth)
    }

    /// What a function is called with, of something so deep or of nothing; gives how deep the deepest of all this is.
    fn call(&mut self, name: &str, of: Option<usize>) -> Result<usize, String> {
        let Some((_, form)) = FUNCTIONS.iter().find(|(known, _)| *known == name) else {
            return Err(format!("calls {name}, which not every Envoy knows"));
        };
        let values = self.values()?;
        let given = values.len();
        let is_known = match (form, of) {
            (CelForm::Global(count) | CelForm::Either(count), None) => given == *count,
            (CelForm::Either(count), Some(_)) => given + 1 == *count,
            (CelForm::Global(_), Some(_)) => return Err(format!("calls {name} behind a dot")),
        };
        if !is_known {
            let place = if of.is_some() { " behind a dot" } else { "" };
            return Err(format!("calls {name}{place} with {given} values, which it doesn't take"));
        }
        if name == "matches"
            && let Some(pattern) = values.last().and_then(|value| text_alone(value.tokens))
        {
            check_pattern(pattern)?;
        }
        let depths = values.iter().map(|value| value.depth).chain(of);
        Ok(depths.max().unwrap_or_default())
    }

    /// The values of a call, to its end. Unlike lists, none may end with a comma.
    fn values(&mut self) -> Result<Vec<CelValue<'t, 'a>>, String> {
        let mut values = Vec::new();
        if self.takes(")") {
            return Ok(values);
        }
        loop {
            let from = self.rest;
            let depth = self.expression()?;
            let tokens = &from[..from.len() - self.rest.len()];
            values.push(CelValue { depth, tokens });
            if !self.takes(",") {
                self.needs(")")?;
                return Ok(values);
            }
        }
    }

    fn list(
        &mut self,
        end: &str,
        mut one: impl FnMut(&mut Self) -> Result<usize, String>,
    ) -> Result<usize, String> {
        let mut deepest = 0;
        while !self.takes(end) {
            deepest = deepest.max(one(self)?);
            if !self.takes(",") {
                self.needs(end)?;
                break;
            }
        }
        Ok(deepest)
    }
}

/// A value with what is selected of it.
struct CelSelection {
    depth: usize,
    /// Whether a field is what is selected last.
    is_field: bool,
}

/// A value that a function is called with.
struct CelValue<'t, 'a> {
    depth: usize,
    tokens: &'t [CelToken<'a>],
}

/// The text that an expression is, perhaps in parentheses. Envoys compile such a pattern when they read the expression,
/// and any other where a request is looked at.
fn text_alone<'t>(mut tokens: &'t [CelToken<'_>]) -> Option<&'t str> {
    while let [CelToken::Sign("("), within @ .., CelToken::Sign(")")] = tokens {
        tokens = within;
    }
    match tokens {
        [CelToken::Text { value, .. }] => Some(value),
        _ => None,
    }
}

/// Programs for patterns in expressions are no larger than Envoys take where nothing is said.
fn check_pattern(pattern: &str) -> Result<(), String> {
    if pattern.is_empty() {
        return Ok(());
    }
    let within = |fact: String| format!("has a pattern {pattern:?} that {fact}");
    let regex = re2::parse(pattern).map_err(within)?;
    if regex.size > re2::PLAIN_PROGRAM_MAX {
        let most = re2::PLAIN_PROGRAM_MAX;
        return Err(within(format!("makes a program of more than {most} instructions")));
    }
    Ok(())
}

/// Expressions that Envoys read, together with every function.
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

/// Expressions for which Envoys refuse a whole listener, with a part of what is said of each.
pub const UNREADABLE: [(&str, &str); 69] = [
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
    ("has(a.b, c.d)", "\")\" is missing"),
    ("a.has(b.c)", "calls has"),
    (".has(b.c)", "goes on with \"(\""),
    ("'a", "isn't closed"),
    ("'a\rb' == a", "isn't closed on its line"),
    ("'\\q'", "backslash"),
    ("'\\x+1' == a", "backslash"),
    ("'\\400' == a", "backslash"),
    ("r'a\\' == a", "ends with a backslash"),
    ("'\\ud800' == 'a'", "no Unicode character"),
    ("'\\U99999999' == 'a'", "no Unicode character"),
    ("b'\\u00e9' == b'a'", "within bytes"),
    ("rb'a' == b'a'", "\"rb\" before a quote"),
    ("rr'a' == 'a'", "\"rr\" before a quote"),
    ("a && in", "\"in\""),
    ("a.in", "\"in\""),
    ("request.true", "\"true\" behind a dot"),
    ("null() == 1", "calls null"),
    ("99999999999999999999 > 1", "too large"),
    ("1e > 1", "exponent"),
    ("a # b", "means nothing"),
    ("a\u{a0}== b", "means nothing"),
    ("a \u{b}== b", "means nothing"),
    ("\u{feff}a", "means nothing"),
    ("[1, 2", "\"]\" is missing"),
    ("{1}", "\":\" is missing"),
    ("size() > 1", "size with 0 values"),
    ("size('a', 'b') == 1", "size with 2 values"),
    ("'a'.size('b') == 1", "size behind a dot with 1 values"),
    ("size('a',) == 1", "\")\" where a value"),
    ("contains('a')", "contains with 1 values"),
    ("'a'.contains()", "contains behind a dot with 0"),
    ("'a'.startsWith('b', 'c')", "startsWith behind a dot with 2"),
    ("endsWith('a')", "endsWith with 1"),
    ("matches('a')", "matches with 1"),
    ("type() == int", "type with 0 values"),
    ("(1).type() == int", "calls type behind a dot"),
    ("int('1', '2') == 1", "int with 2 values"),
    ("'1'.int() == 1", "calls int behind a dot"),
    ("a.uint(1) == 1u", "calls uint behind a dot"),
    ("a.double(1) == 1.0", "calls double behind a dot"),
    ("a.bytes(1) == b''", "calls bytes behind a dot"),
    ("a.dyn(1) == 1", "calls dyn behind a dot"),
    ("'1s'.duration() == a", "calls duration behind a dot"),
    ("'a'.timestamp() == a", "calls timestamp behind a dot"),
    ("int(1)(2)", "goes on with \"(\""),
    ("request.path.matches('*.js')", "repeats nothing"),
    ("request.path.matches('(?!/healthz)')", "pattern \"(?!/healthz)\""),
    ("matches(request.path, '(')", "pattern \"(\""),
    ("request.path.matches((('(')))", "pattern \"(\""),
    ("request.path.matches('''(''')", "pattern \"(\""),
    ("request.path.matches('\\x28')", "pattern \"(\""),
    ("request.path.matches(r'(?=a)')", "pattern"),
    ("request.path.matches('[a-z]{1000}')", "more than 100 instructions"),
    ("request.path.matches('(x{50}){20}')", "more than 100 instructions"),
];

/// Expressions one operator, selection, index or call deeper than Envoys take.
pub fn too_deep_for_envoys() -> Vec<String> {
    deep(1)
}

/// Expressions as deep as Envoys take.
pub fn as_deep_as_envoys_take() -> Vec<String> {
    deep(0)
}

/// Chains and nestings as deep as Envoys take, and so much deeper.
fn deep(more: usize) -> Vec<String> {
    let nested = |count: usize, before: &str, within: &str, after: &str| {
        let count = count + more;
        format!("{}{within}{}", before.repeat(count), after.repeat(count))
    };
    vec![
        nested(31, "", "1", "+1"),
        nested(31, "", "a", " == a"),
        nested(31, "", "a", ".a"),
        nested(30, "", "has(a", ".a") + ")",
        nested(31, "", "a", "[1]"),
        nested(31, "", "'a'", ".size()"),
        nested(31, "size(", "'a'", ")"),
        nested(31, "a[", "1", "]"),
        nested(31, "[", "1", "]"),
        nested(31, "{1:", "1", "}"),
        nested(31, "!(", "true", ")"),
        nested(31, "a ? b : ", "true", ""),
        nested(31, "(a && ", "true", ")"),
        nested(27, "", "b || c && !a", ".a") + " == 1",
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_envoys_read_is_taken() {
        for text in READABLE {
            assert_eq!(check(text), Ok(()), "{text}");
        }
        for (name, _) in FUNCTIONS {
            let call = format!("{name}(");
            assert!(READABLE.iter().any(|text| text.contains(&call)), "{name} is in no example");
        }
    }

    #[test]
    fn what_no_envoy_reads_is_refused_with_the_place() {
        for (text, part) in UNREADABLE {
            let fact = check(text).expect_err(text);
            assert!(fact.contains(part), "{text}: {fact}");
        }
        for text in too_deep_for_envoys() {
            let fact = check(&text).expect_err(&text);
            assert!(fact.contains("deep"), "{text}: {fact}");
        }
        assert!(check(&format!("'{}'", "a".repeat(5000))).is_err());
    }

    #[test]
    fn as_much_is_taken_as_envoys_do() {
        for text in as_deep_as_envoys_take() {
            assert_eq!(check(&text), Ok(()), "{text}");
        }
    }
}
