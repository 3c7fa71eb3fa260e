//! Outputs of Terraform, as values: `data.terraform_output.NAME.OUTPUT`.
//! It must not know what they are used for, nor how Terraform made them.
//!
//! What Terraform calls sensitive is left out: a secret that goes through files which are read as
//! they are is none. `secret(…)` is for those.

use hcl::{Map, Value};
use serde_json::Value as Json;

use crate::config::eval::Known;
use crate::config::functions::encoding::from_json;
use crate::config::problem::ProblemCode;
use crate::config::read::Reader;
use crate::config::report::Finding;
use crate::config::section::Section;

/// The only type of data there is.
pub(super) const TYPE: &str = "terraform_output";

/// What its blocks count as.
pub(super) const BLOCK: &str = "data \"terraform_output\"";

/// The version of Terraform's state since 0.12.
const STATE_VERSION: i64 = 4;

/// All outputs, by the name of their block; none where some cannot be had, which is reported.
pub(super) fn outputs(reader: &Reader<'_>, declared: &[Section]) -> Option<Known> {
    let read = |section: &Section| Some((section.label().to_owned(), one(reader, section)?));
    // All of them, since each may have a fault of its own.
    let all: Vec<Option<(String, Value)>> = declared.iter().map(read).collect();
    let all: Option<Map<String, Value>> = all.into_iter().collect();
    Some(Known {
        value: Value::Object(all?),
        sensitive: false,
    })
}

fn one(reader: &Reader<'_>, section: &Section) -> Option<Value> {
    let refuse = |code, span, detail: String, help: &str| {
        let finding = Finding::error(code, span, detail).within(&section.title);
        reader.reporter.add(finding.help(help));
        None
    };
    let is_given = |name: &&str| section.has(name);
    let given: Vec<&str> = ["file", "state"].into_iter().filter(is_given).collect();
    let [argument] = given[..] else {
        let (code, detail) = match given.is_empty() {
            true => (
                ProblemCode::MissingArgument,
                "It does not say where the outputs are.",
            ),
            false => (ProblemCode::Conflict, "The outputs are in one place."),
        };
        let help = "write file for what `terraform output -json` prints, or state for a state";
        return refuse(code, section.header, detail.to_owned(), help);
    };
    let span = section.span(argument);
    let environment = &reader.evaluator.environment;
    let path = environment.resolve(section.text(argument)?);
    let shown = match section.get(argument) {
        Some(read) if read.sensitive => "The file".to_owned(),
        _ => path.display().to_string(),
    };
    let text = match (environment.read)(&path) {
        Ok(text) => text,
        Err(error) => {
            let detail = format!("{shown} cannot be read: {error}.");
            let help = "name a file that the user of the daemon can read";
            return refuse(ProblemCode::Unreadable, span, detail, help);
        }
    };
    let outputs = serde_json::from_str(&text)
        .map_err(|error| format!("it is not JSON: {error}"))
        .and_then(|json: Json| match argument {
            "state" => of_state(&json),
            _ => unwrapped(&json),
        });
    outputs.map_or_else(
        |why| {
            let detail = format!("{shown} holds no outputs of Terraform: {why}.");
            let help = match argument {
                "state" => "name a state as Terraform writes it since version 0.12",
                _ => "write it with terraform output -json",
            };
            refuse(ProblemCode::InvalidValue, span, detail, help)
        },
        Some,
    )
}

/// The outputs of a state.
fn of_state(state: &Json) -> Result<Value, String> {
    if state.get("version").and_then(Json::as_i64) != Some(STATE_VERSION) {
        return Err(format!("it is no state of version {STATE_VERSION}"));
    }
    match state.get("outputs") {
        Some(outputs) => unwrapped(outputs),
        None => Err("the state has none".to_owned()),
    }
}

/// The values of outputs, those aside that are sensitive.
fn unwrapped(outputs: &Json) -> Result<Value, String> {
    let Json::Object(outputs) = outputs else {
        return Err("it is no map of outputs".to_owned());
    };
    let mut values = Map::new();
    for (name, output) in outputs {
        let Some(value) = output.get("value") else {
            return Err(format!("{name:?} has no value"));
        };
        if output.get("sensitive").and_then(Json::as_bool) != Some(true) {
            values.insert(name.clone(), from_json(value));
        }
    }
    Ok(Value::Object(values))
}
