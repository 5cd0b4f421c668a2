//! Tokens of a CEL expression.

/// A token of a CEL expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CelToken<'a> {
    /// A name or keyword.
    Name(&'a str),
    /// A number or a bytes literal.
    Literal(&'a str),
    /// A string literal.
    Text {
        /// The literal with its quotes.
        written: &'a str,
        /// Value of the literal.
        value: String,
    },
    /// An operator or a bracket.
    Sign(&'a str),
}

impl std::fmt::Display for CelToken<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Name(text)
        | Self::Literal(text)
        | Self::Text { written: text, .. }
        | Self::Sign(text)) = self;
        write!(f, "{text:?}")
    }
}

/// Symbols, the longest first.
const SIGNS: [&str; 24] = [
    "&&", "||", "==", "!=", "<=", ">=", "<", ">", "!", "?", ":", "+", "-", "*", "/", "%", "(", ")",
    "[", "]", "{", "}", ",", ".",
];

/// White space of the language. No other is valid outside of strings.
const SPACE: [char; 5] = ['\t', '\n', '\u{c}', '\r', ' '];

/// Splits an expression into tokens.
///
/// # Errors
/// A description of the problem.
pub(super) fn tokens(text: &str) -> Result<Vec<CelToken<'_>>, String> {
    let mut found = Vec::new();
    let mut rest = text.trim_start_matches(SPACE);
    while let Some(first) = rest.chars().next() {
        let (token, len) = if let Some(found) = quoted(rest)? {
            found
        } else if first.is_ascii_alphabetic() || first == '_' {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let len = end.unwrap_or(rest.len());
            (CelToken::Name(&rest[..len]), len)
        } else if first.is_ascii_digit() {
            let len = number(rest)?;
            (CelToken::Literal(&rest[..len]), len)
        } else if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            (CelToken::Sign(sign), sign.len())
        } else {
            return Err(format!("has {first:?}, which is not a valid symbol"));
        };
        found.push(token);
        rest = rest[len..].trim_start_matches(SPACE);
    }
    Ok(found)
}

/// Parses a string or bytes literal at the beginning. Also returns its length.
fn quoted(rest: &str) -> Result<Option<(CelToken<'_>, usize)>, String> {
    let prefix = rest.find(|c: char| !matches!(c, 'r' | 'R' | 'b' | 'B')).unwrap_or(rest.len());
    let (letters, body) = rest.split_at(prefix);
    let Some(quote) = body.chars().next().filter(|c| matches!(c, '"' | '\'')) else {
        return Ok(None);
    };
    let (is_bytes, is_raw) = match &*letters.to_ascii_lowercase() {
        "" => (false, false),
        "b" => (true, false),
        "r" => (false, true),
        "br" => (true, true),
        _ => return Err(format!("has {letters:?} before a quote")),
    };
    let triple = quote.to_string().repeat(3);
    let end = if body.starts_with(&triple) { triple } else { quote.to_string() };
    let (value, behind) = enclosed(&body[end.len()..], &end, is_bytes, is_raw)?;
    let len = rest.len() - behind.len();
    let written = &rest[..len];
    let token =
        if is_bytes { CelToken::Literal(written) } else { CelToken::Text { written, value } };
    Ok(Some((token, len)))
}

/// Parses a literal up to its closing quotes. Returns its value and the remaining text.
fn enclosed<'a>(
    text: &'a str,
    end: &str,
    is_bytes: bool,
    is_raw: bool,
) -> Result<(String, &'a str), String> {
    let mut value = String::new();
    let mut rest = text;
    loop {
        if let Some(behind) = rest.strip_prefix(end) {
            let backslashes = value.len() - value.trim_end_matches('\\').len();
            // Envoy ends the literal there, and then interprets the backslash as an escape of the
            // quote.
            if is_raw && backslashes % 2 == 1 {
                return Err("has a raw string that ends with a backslash".to_owned());
            }
            return Ok((value, behind));
        }
        let Some(next) = rest.chars().next() else {
            return Err("has a string whose quote isn't closed".to_owned());
        };
        if matches!(next, '\n' | '\r') && end.len() == 1 {
            return Err("has a string whose quote isn't closed on its line".to_owned());
        }
        rest = &rest[next.len_utf8()..];
        if next == '\\' && !is_raw {
            let (c, len) = escaped(rest, is_bytes)?;
            value.push(c);
            rest = &rest[len..];
        } else {
            value.push(next);
        }
    }
}

/// Parses the escape sequence in `rest`, after its backslash. Returns the character and the length.
fn escaped(rest: &str, is_bytes: bool) -> Result<(char, usize), String> {
    let wrong = || "has an invalid escape after a backslash".to_owned();
    let number = |from: usize, count: usize, radix: u32| {
        let digits = rest.get(from..from + count).filter(|text| !text.starts_with('+'));
        let number = digits.and_then(|text| u32::from_str_radix(text, radix).ok());
        let point = number.ok_or_else(wrong)?;
        let c = char::from_u32(point);
        let c = c.ok_or_else(|| format!("escapes {point:#x}, which is no Unicode character"))?;
        Ok((c, from + count))
    };
    let c = match rest.chars().next() {
        Some('a') => '\u{7}',
        Some('b') => '\u{8}',
        Some('f') => '\u{c}',
        Some('n') => '\n',
        Some('r') => '\r',
        Some('t') => '\t',
        Some('v') => '\u{b}',
        Some(c @ ('\\' | '\'' | '"' | '`' | '?')) => c,
        Some('x' | 'X') => return number(1, 2, 16),
        Some('0'..='3') => return number(0, 3, 8),
        Some(c @ ('u' | 'U')) if is_bytes => {
            return Err(format!("has \\{c} within bytes, which have no Unicode"));
        }
        Some('u') => return number(1, 4, 16),
        Some('U') => return number(1, 8, 16),
        _ => return Err(wrong()),
    };
    Ok((c, 1))
}

/// Returns the length of a number.
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
            Err("has a number that is too large".to_owned())
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
        _ => Err("has a number that is too large".to_owned()),
    }
}

/// Includes the suffix of an unsigned number.
fn unsigned(rest: &str, end: usize) -> usize {
    end + usize::from(rest.get(end..).is_some_and(|rest| rest.starts_with(['u', 'U'])))
}
