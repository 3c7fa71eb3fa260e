//! Functions that convert values, or read files, secrets and the environment.

use std::fmt::Write as _;

use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use base64::{Engine as _, alphabet};
use hcl::{Number, Value};
use serde_json::Value as Json;

use super::{Args, FunctionError, FunctionResult, yaml};
use crate::config::value;

pub(super) fn tostring(args: &Args<'_>) -> FunctionResult {
    match args.value_at(0) {
        Value::Null => Ok(Value::Null),
        _ => Ok(Value::String(args.text(0)?)),
    }
}

pub(super) fn tonumber(args: &Args<'_>) -> FunctionResult {
    match args.value_at(0) {
        Value::Null => Ok(Value::Null),
        _ => Ok(Value::Number(args.number(0)?)),
    }
}

pub(super) fn tobool(args: &Args<'_>) -> FunctionResult {
    match (args.value_at(0), value::to_bool(args.value_at(0))) {
        (Value::Null, _) => Ok(Value::Null),
        (_, Some(flag)) => Ok(Value::Bool(flag)),
        (_, None) => args.type_error(0, "a bool"),
    }
}

pub(super) fn env(args: &Args<'_>) -> FunctionResult {
    let name = args.text(0)?;
    match (args.environment.env.get(&name), args.values.get(1)) {
        (Some(value), _) => Ok(Value::String(value.clone())),
        (None, Some(default)) => Ok(default.clone()),
        (None, None) => {
            let why =
                format!("the environment variable {name:?} is not set, and no default is given");
            Err(FunctionError::at_argument(0, why))
        }
    }
}

pub(super) fn secret(args: &Args<'_>) -> FunctionResult {
    let name = args.text(0)?;
    let secret = args.environment.secrets.get(&name).cloned();
    let why = format!("there is no secret named {name:?}");
    let fault = FunctionError::at_argument(0, why);
    secret.map(Value::String).ok_or(fault)
}

pub(super) fn file(args: &Args<'_>) -> FunctionResult {
    let name = args.text(0)?;
    let path = args.environment.resolve(&name);
    let read = (args.environment.read)(&path);
    read.map(Value::String).map_err(|error| {
        FunctionError::at_argument(0, format!("{} cannot be read: {error}", path.display()))
    })
}

pub(super) fn fileexists(args: &Args<'_>) -> FunctionResult {
    let path = args.environment.resolve(&args.text(0)?);
    Ok(Value::Bool((args.environment.read)(&path).is_ok()))
}

pub(super) fn jsondecode(args: &Args<'_>) -> FunctionResult {
    let json = serde_json::from_str::<Json>(&args.text(0)?);
    json.map(|json| from_json(&json))
        .map_err(|error| FunctionError::at_argument(0, format!("the string is not JSON: {error}")))
}

/// Converts a JSON value to an HCL value.
pub(in crate::config) fn from_json(json: &Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(flag) => Value::Bool(*flag),
        Json::Number(number) => {
            let integer = number.as_u64().map(Number::from);
            let integer = integer.or_else(|| number.as_i64().map(Number::from));
            let number = integer.or_else(|| Number::from_f64(number.as_f64()?));
            number.map_or(Value::Null, Value::Number)
        }
        Json::String(text) => Value::String(text.clone()),
        Json::Array(items) => Value::Array(items.iter().map(from_json).collect()),
        Json::Object(items) => {
            let items = items.iter().map(|(key, item)| (key.clone(), from_json(item)));
            Value::Object(items.collect())
        }
    }
}

pub(super) fn jsonencode(args: &Args<'_>) -> FunctionResult {
    Ok(Value::String(json_text(args.value_at(0))))
}

/// The value as JSON: keys are sorted, and the same characters are escaped as in Terraform.
pub(super) fn json_text(item: &Value) -> String {
    fn to_json(item: &Value) -> Json {
        match item {
            Value::Null => Json::Null,
            Value::Bool(flag) => Json::from(*flag),
            Value::Number(number) => number
                .as_u64()
                .map(Json::from)
                .or_else(|| number.as_i64().map(Json::from))
                .or_else(|| number.as_f64().map(Json::from))
                .unwrap_or_default(),
            Value::String(text) => Json::from(text.as_str()),
            Value::Array(items) => items.iter().map(to_json).collect(),
            Value::Object(_) => {
                let elements = value::elements(item).unwrap_or_default();
                let members = elements.into_iter().map(|(key, item)| {
                    let key = value::to_text(&key).unwrap_or_default();
                    (key, to_json(item))
                });
                Json::Object(members.collect())
            }
        }
    }
    let text = to_json(item).to_string();
    text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

pub(super) fn yamldecode(args: &Args<'_>) -> FunctionResult {
    yaml::parse(&args.text(0)?).map_err(|fault| {
        FunctionError::at_argument(0, format!("line {} of the string: {}", fault.line, fault.text))
    })
}

pub(super) fn yamlencode(args: &Args<'_>) -> FunctionResult {
    fn quoted_yaml(text: &str) -> String {
        Json::from(text).to_string()
    }
    /// Writes the value after a key or a dash.
    fn write_yaml_value(item: &Value, indent: usize, out: &mut String) {
        let pad = "  ".repeat(indent);
        match item {
            Value::Array(items) if !items.is_empty() => {
                for item in items {
                    let _ = write!(out, "{pad}-");
                    write_nested(item, indent, out);
                }
            }
            Value::Object(items) if !items.is_empty() => {
                for (key, item) in value::elements(item).unwrap_or_default() {
                    let key = quoted_yaml(&value::to_text(&key).unwrap_or_default());
                    let _ = write!(out, "{pad}{key}:");
                    write_nested(item, indent, out);
                }
            }
            Value::Array(_) => out.push_str("[]\n"),
            Value::Object(_) => out.push_str("{}\n"),
            Value::String(text) => {
                let _ = writeln!(out, "{}", quoted_yaml(text));
            }
            other => {
                let text = value::to_text(other).unwrap_or_else(|| "null".to_owned());
                let _ = writeln!(out, "{text}");
            }
        }
    }
    fn write_nested(item: &Value, indent: usize, out: &mut String) {
        let deep = match item {
            Value::Array(items) => !items.is_empty(),
            Value::Object(items) => !items.is_empty(),
            _ => false,
        };
        out.push(if deep { '\n' } else { ' ' });
        write_yaml_value(item, indent + 1, out);
    }
    let mut out = String::new();
    write_yaml_value(args.value_at(0), 0, &mut out);
    Ok(Value::String(out))
}

/// Terraform ignores the last bits of a base64 string that ends within a byte.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

pub(super) fn base64encode(args: &Args<'_>) -> FunctionResult {
    Ok(Value::String(BASE64.encode(args.text(0)?)))
}

pub(super) fn base64decode(args: &Args<'_>) -> FunctionResult {
    let text = args.text(0)?;
    let padding = text.len() - text.trim_end_matches('=').len();
    if text.len() % 4 != 0 || padding > 2 {
        return Err(FunctionError::at_argument(
            0,
            "the string is not base64: its length is not a multiple of four",
        ));
    }
    let Ok(bytes) = BASE64.decode(text) else {
        return Err(FunctionError::at_argument(
            0,
            "the string is not base64: it has an invalid character",
        ));
    };
    match String::from_utf8(bytes) {
        Ok(decoded) => Ok(Value::String(decoded)),
        Err(_) => Err(FunctionError::at_argument(0, "the decoded string is not UTF-8")),
    }
}
