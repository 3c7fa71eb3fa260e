//! String functions.

use hcl::{Map, Number, Value};
use regex::{Captures, Regex};

use super::{Args, FunctionError, FunctionResult};
use crate::config::value;

/// Maximum length of a result in bytes, far above the size of user data or labels.
const TEXT_MAX: usize = 4 << 20;
/// Maximum width and precision of a format.
const WIDTH_MAX: usize = 1024;

fn text_result(text: impl Into<String>) -> FunctionResult {
    Ok(Value::String(text.into()))
}

fn list_result(texts: impl IntoIterator<Item = String>) -> FunctionResult {
    Ok(Value::Array(texts.into_iter().map(Value::String).collect()))
}

fn check_size(bytes: usize) -> Result<(), FunctionError> {
    if bytes > TEXT_MAX {
        return Err("the result would be longer than 4 MiB".into());
    }
    Ok(())
}

pub(super) fn endswith(args: &Args<'_>) -> FunctionResult {
    Ok(Value::Bool(args.text(0)?.ends_with(&args.text(1)?)))
}

pub(super) fn startswith(args: &Args<'_>) -> FunctionResult {
    Ok(Value::Bool(args.text(0)?.starts_with(&args.text(1)?)))
}

pub(super) fn strcontains(args: &Args<'_>) -> FunctionResult {
    Ok(Value::Bool(args.text(0)?.contains(&args.text(1)?)))
}

pub(super) fn lower(args: &Args<'_>) -> FunctionResult {
    text_result(args.text(0)?.to_lowercase())
}

pub(super) fn upper(args: &Args<'_>) -> FunctionResult {
    text_result(args.text(0)?.to_uppercase())
}

pub(super) fn title(args: &Args<'_>) -> FunctionResult {
    let mut start = true;
    let mut out = String::new();
    for c in args.text(0)?.chars() {
        if start {
            out.extend(c.to_uppercase());
        } else {
            out.push(c);
        }
        start = !c.is_alphanumeric() && c != '\'' && c != '_';
    }
    text_result(out)
}

pub(super) fn trim(args: &Args<'_>) -> FunctionResult {
    let cut: Vec<char> = args.text(1)?.chars().collect();
    text_result(args.text(0)?.trim_matches(cut.as_slice()))
}

pub(super) fn trimprefix(args: &Args<'_>) -> FunctionResult {
    let (whole, prefix) = (args.text(0)?, args.text(1)?);
    text_result(whole.strip_prefix(&prefix).unwrap_or(&whole))
}

pub(super) fn trimsuffix(args: &Args<'_>) -> FunctionResult {
    let (whole, suffix) = (args.text(0)?, args.text(1)?);
    text_result(whole.strip_suffix(&suffix).unwrap_or(&whole))
}

pub(super) fn trimspace(args: &Args<'_>) -> FunctionResult {
    text_result(args.text(0)?.trim())
}

pub(super) fn split(args: &Args<'_>) -> FunctionResult {
    let (separator, whole) = (args.text(0)?, args.text(1)?);
    if whole.is_empty() {
        return list_result([]);
    }
    if separator.is_empty() {
        return list_result(whole.chars().map(String::from));
    }
    list_result(whole.split(&separator).map(str::to_owned))
}

pub(super) fn join(args: &Args<'_>) -> FunctionResult {
    let separator = args.text(0)?;
    let mut texts = Vec::new();
    for arg in 1..args.values.len() {
        texts.extend(args.texts(arg)?);
    }
    let inner: usize = texts.iter().map(String::len).sum();
    check_size(inner + separator.len().saturating_mul(texts.len()))?;
    text_result(texts.join(&separator))
}

pub(super) fn substr(args: &Args<'_>) -> FunctionResult {
    let whole: Vec<char> = args.text(0)?.chars().collect();
    let length = i64::try_from(whole.len()).unwrap_or(i64::MAX);
    let (offset, wanted) = (args.integer(1)?, args.integer(2)?);
    let start = if offset < 0 { length.saturating_add(offset).max(0) } else { offset.min(length) };
    let end = match wanted {
        -1 => length,
        0.. => start.saturating_add(wanted).min(length),
        _ => return args.type_error(2, "a length, or -1 for the rest"),
    };
    let [start, end] = [start, end].map(|index| usize::try_from(index).unwrap_or(0));
    text_result(whole[start..end].iter().collect::<String>())
}

fn compile_pattern(args: &Args<'_>, arg: usize, text: &str) -> Result<Regex, FunctionError> {
    Regex::new(text).map_err(|error| {
        let why = error.to_string();
        let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ");
        FunctionError::at_argument(
            arg.min(args.values.len()),
            format!("{text:?} is not a regular expression: {why}"),
        )
    })
}

/// A match as in Terraform: the string, the groups, or the groups by name.
fn match_value(regex: &Regex, found: &Captures<'_>) -> Value {
    let texts: Vec<Value> = found
        .iter()
        .map(|group| group.map_or(Value::Null, |group| group.as_str().into()))
        .collect();
    if let [whole] = texts.as_slice() {
        return whole.clone();
    }
    let names: Vec<Option<&str>> = regex.capture_names().collect();
    if names.iter().any(Option::is_some) {
        let members = names
            .iter()
            .enumerate()
            .filter_map(|(place, name)| Some(((*name)?.to_owned(), texts[place].clone())));
        return Value::Object(members.collect::<Map<String, Value>>());
    }
    Value::Array(texts[1..].to_vec())
}

pub(super) fn regex(args: &Args<'_>) -> FunctionResult {
    let (wanted, whole) = (args.text(0)?, args.text(1)?);
    let regex = compile_pattern(args, 0, &wanted)?;
    match regex.captures(&whole) {
        Some(captures) => Ok(match_value(&regex, &captures)),
        None => Err(format!("{wanted:?} matches nothing in the string").into()),
    }
}

pub(super) fn regexall(args: &Args<'_>) -> FunctionResult {
    let (wanted, whole) = (args.text(0)?, args.text(1)?);
    let regex = compile_pattern(args, 0, &wanted)?;
    let all = regex.captures_iter(&whole).map(|captures| match_value(&regex, &captures));
    Ok(Value::Array(all.collect()))
}

pub(super) fn replace(args: &Args<'_>) -> FunctionResult {
    let (whole, wanted, new) = (args.text(0)?, args.text(1)?, args.text(2)?);
    let slashed = wanted.strip_prefix('/').and_then(|rest| rest.strip_suffix('/'));
    if let Some(wanted) = slashed {
        let regex = compile_pattern(args, 1, wanted)?;
        // Each match may insert the whole string several times.
        let hits = regex.find_iter(&whole).count();
        let size_max = new.len().saturating_mul(whole.len().max(1));
        check_size(whole.len().saturating_add(hits.saturating_mul(size_max.min(TEXT_MAX))))?;
        return text_result(regex.replace_all(&whole, new.as_str()).into_owned());
    }
    let hits = whole.matches(&wanted).count();
    check_size(whole.len().saturating_add(hits.saturating_mul(new.len())))?;
    text_result(whole.replace(&wanted, &new))
}

pub(super) fn format(args: &Args<'_>) -> FunctionResult {
    text_result(format_inputs(&args.text(0)?, &args.values[1..])?)
}

pub(super) fn formatlist(args: &Args<'_>) -> FunctionResult {
    let pattern = args.text(0)?;
    let lengths = args.values[1..].iter().filter_map(Value::as_array).map(Vec::len);
    let Some(rows) = lengths.clone().min() else {
        return list_result([format_inputs(&pattern, &args.values[1..])?]);
    };
    if lengths.max() != Some(rows) {
        return Err("the lists differ in length".into());
    }
    let mut lines = Vec::new();
    for row in 0..rows {
        let inputs = args.values[1..].iter().map(|input| match input {
            Value::Array(items) => items[row].clone(),
            other => other.clone(),
        });
        lines.push(format_inputs(&pattern, &inputs.collect::<Vec<Value>>())?);
    }
    list_result(lines)
}

/// One verb (`%…`) of a format string.
#[derive(Default)]
struct FormatVerb {
    left: bool,
    zeros: bool,
    plus: bool,
    width: usize,
    precision: Option<usize>,
}

/// The argument that a verb formats.
struct VerbInput<'a> {
    letter: char,
    value: &'a Value,
    arg: usize,
}

impl VerbInput<'_> {
    fn type_error(&self, wants: &str) -> FunctionError {
        let (letter, got) = (self.letter, value::type_name(self.value));
        let text = format!("the value of %{letter} must be {wants}, not {got}");
        FunctionError::at_argument(self.arg, text)
    }

    fn number(&self) -> Result<Number, FunctionError> {
        value::to_number(self.value).ok_or_else(|| self.type_error("a number"))
    }

    fn integer(&self) -> Result<i64, FunctionError> {
        let integer = self.number()?.as_i64();
        integer.ok_or_else(|| self.type_error("an integer"))
    }

    fn text(&self) -> Result<String, FunctionError> {
        value::to_text(self.value).ok_or_else(|| self.type_error("a string, number or bool"))
    }
}

fn format_inputs(pattern: &str, inputs: &[Value]) -> Result<String, FunctionError> {
    let mut out = String::new();
    let mut rest = pattern.chars().peekable();
    let mut used = 0;
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut verb = FormatVerb::default();
        while let Some(flag) = rest.next_if(|c| matches!(c, '-' | '0' | '+')) {
            match flag {
                '-' => verb.left = true,
                '0' => verb.zeros = true,
                _ => verb.plus = true,
            }
        }
        while let Some(digit) = rest.next_if(char::is_ascii_digit) {
            verb.width = verb.width * 10 + digit.to_digit(10).unwrap_or(0) as usize;
            if verb.width > WIDTH_MAX {
                return Err(format!("a width must be at most {WIDTH_MAX}").into());
            }
        }
        if rest.next_if_eq(&'.').is_some() {
            let mut number = 0_usize;
            while let Some(digit) = rest.next_if(char::is_ascii_digit) {
                number = (number * 10 + digit.to_digit(10).unwrap_or(0) as usize).min(WIDTH_MAX);
            }
            verb.precision = Some(number);
        }
        let Some(letter) = rest.next() else {
            return Err("the format ends with an incomplete verb".into());
        };
        if letter == '%' {
            out.push('%');
            continue;
        }
        let Some(value) = inputs.get(used) else {
            return Err(format!("there is no argument left for %{letter}").into());
        };
        used += 1;
        let arg = used;
        out.push_str(&verb.apply(&VerbInput { letter, value, arg })?);
        check_size(out.len())?;
    }
    if used < inputs.len() {
        return Err(format!("there are {} arguments for {used} verbs", inputs.len()).into());
    }
    Ok(out)
}

impl FormatVerb {
    fn apply(&self, input: &VerbInput<'_>) -> Result<String, FunctionError> {
        let (letter, value) = (input.letter, input.value);
        let text = match letter {
            's' => input.text()?,
            'v' => value::to_text(value).unwrap_or_else(|| super::encoding::json_text(value)),
            'q' => format!("{:?}", input.text()?),
            'd' => input.integer()?.to_string(),
            'x' => format!("{:x}", input.integer()?),
            'X' => format!("{:X}", input.integer()?),
            'o' => format!("{:o}", input.integer()?),
            'b' => format!("{:b}", input.integer()?),
            'f' => format!(
                "{:.*}",
                self.precision.unwrap_or(6),
                input.number()?.as_f64().unwrap_or_default()
            ),
            'g' => value::number_text(&input.number()?),
            't' => match value::to_bool(value) {
                Some(flag) => flag.to_string(),
                None => return Err(input.type_error("a bool")),
            },
            other => return Err(format!("there is no verb %{other}").into()),
        };
        let text = match self.precision {
            Some(length) if matches!(letter, 's' | 'q' | 'v') => {
                text.chars().take(length).collect()
            }
            _ => text,
        };
        let text = match text.strip_prefix('-') {
            None if self.plus && matches!(letter, 'd' | 'f' | 'g') => format!("+{text}"),
            _ => text,
        };
        let width = self.width;
        Ok(match (self.left, self.zeros && !matches!(letter, 's' | 'q' | 'v' | 't')) {
            (true, _) => format!("{text:<width$}"),
            (false, false) => format!("{text:>width$}"),
            (false, true) => {
                let (sign, digits) = match text.strip_prefix(['-', '+']) {
                    Some(digits) => (&text[..1], digits),
                    None => ("", text.as_str()),
                };
                format!("{sign}{digits:0>0$}", width.saturating_sub(sign.len()))
            }
        })
    }
}
