//! Terraform outputs as values: `data.terraform_output.NAME.OUTPUT`.
//!
//! Sensitive outputs are omitted: plain files are not a safe channel for secrets. Use `secret(…)`
//! instead.

use hcl::{Map, Value};
use jiff::SignedDuration;
use serde_json::Value as Json;
use thiserror::Error;

use crate::config::decode::Decoder;
use crate::config::decoded_block::DecodedBlock;
use crate::config::diagnostic::ProblemCode;
use crate::config::eval::NamedValue;
use crate::config::functions::ParameterState;
use crate::config::functions::encoding::from_json;
use crate::config::report::error_at;
use crate::config::settings::{Polled, SsmOutput};

/// The only type of data source.
pub(super) const TYPE: &str = "terraform_output";

/// The block type.
pub(super) const BLOCK: &str = "data \"terraform_output\"";

/// The state version since Terraform 0.12.
const STATE_VERSION: i64 = 4;

/// The sources of outputs, and the arguments that are only supported with a parameter.
const PARAMETER: &str = "ssm_parameter";
const PLACES: [&str; 3] = ["file", "state", PARAMETER];
const OF_PARAMETERS: [&str; 3] = ["region", "refresh", "mock"];

/// The default refresh interval of a parameter.
const REFRESH: SignedDuration = SignedDuration::from_mins(5);

/// All outputs, by the name of their block. `None` if some outputs cannot be read, which is
/// reported.
pub(super) fn read_outputs(reader: &Decoder<'_>, declared: &[DecodedBlock]) -> Option<NamedValue> {
    // All blocks are read, so that all errors are reported.
    let outputs: Vec<Option<NamedValue>> =
        declared.iter().map(|section| read_output(reader, section)).collect();
    let outputs: Vec<NamedValue> = outputs.into_iter().collect::<Option<_>>()?;
    let sensitive = outputs.iter().any(|output| output.sensitive);
    let names = declared.iter().map(|section| section.label().to_owned());
    let values: Map<String, Value> =
        names.zip(outputs).map(|(name, output)| (name, output.value)).collect();
    Some(NamedValue { value: Value::Object(values), sensitive })
}

/// The parameters to refresh, with their intervals.
pub(super) fn polled_parameters(declared: &[DecodedBlock]) -> Vec<Polled> {
    declared
        .iter()
        .filter_map(|section| {
            Some(Polled {
                parameter: ssm_parameter(section)?,
                every: section.duration_or_never("refresh").unwrap_or(Some(REFRESH)),
            })
        })
        .collect()
}

/// The parameter of a block.
fn ssm_parameter(section: &DecodedBlock) -> Option<SsmOutput> {
    Some(SsmOutput { name: section.owned_text(PARAMETER)?, region: section.owned_text("region") })
}

fn read_output(reader: &Decoder<'_>, section: &DecodedBlock) -> Option<NamedValue> {
    let sources: Vec<&str> = PLACES.into_iter().filter(|name| section.is_set(name)).collect();
    let [argument] = sources[..] else {
        let (code, detail) = match sources.is_empty() {
            true => (ProblemCode::MissingArgument, "The source of the outputs is missing."),
            false => (ProblemCode::Conflict, "The outputs must have exactly one source."),
        };
        let help = "set file for the output of `terraform output -json`, state for a state file, \
                    or ssm_parameter for an AWS Systems Manager parameter";
        return report_argument(section, code, "", detail, help);
    };
    if argument == PARAMETER {
        return of_parameter(reader, section);
    }
    if let Some(odd) = OF_PARAMETERS.into_iter().find(|name| is_there(section, name)) {
        let detail =
            format!("{odd:?} is only supported with ssm_parameter; files are read at each reload.");
        let help = format!("remove {odd}");
        return report_argument(section, ProblemCode::Conflict, odd, detail, &help);
    }
    of_file(reader, section, argument).map(NamedValue::not_sensitive)
}

fn is_there(section: &DecodedBlock, name: &str) -> bool {
    section.is_set(name) || section.expr(name).is_some()
}

/// Reports an error at an argument, or at the block if the name is empty.
fn report_argument<T>(
    section: &DecodedBlock,
    code: ProblemCode,
    argument: &str,
    detail: impl Into<String>,
    help: &str,
) -> Option<T> {
    let finding = error_at(code, section.value_span(argument), detail);
    finding.help(help).report(section);
    None
}

/// The value of a parameter, or its mock value if parameters are not read. The mock value is always
/// evaluated, so that its errors are found early.
fn of_parameter(reader: &Decoder<'_>, section: &DecodedBlock) -> Option<NamedValue> {
    let mock = match section.expr("mock") {
        None => None,
        Some(expr) => match reader.evaluate(expr, &section.title)? {
            mock if mock.value.is_object() => Some(mock),
            _ => {
                let detail = "mock must be a map from output names to values.".to_owned();
                let finding = error_at(ProblemCode::WrongType, expr.span, detail);
                let help = "write mock = { OUTPUT = value }";
                finding.help(help).report(section);
                return None;
            }
        },
    };
    let parameter = ssm_parameter(section)?;
    let quoted = match section.get(PARAMETER) {
        Some(read) if read.sensitive => "The parameter".to_owned(),
        _ => format!("The parameter {}", parameter.name),
    };
    let text = match (reader.evaluator.environment.parameter)(&parameter) {
        ParameterState::Text(text) => text,
        ParameterState::Unasked if mock.is_some() => return mock,
        ParameterState::Unasked => {
            let detail = format!("{quoted} is not read here, and it has no mock value.");
            let help = "write mock = { OUTPUT = value }, with values of the same shape";
            let code = ProblemCode::MissingArgument;
            return report_argument(section, code, PARAMETER, detail, help);
        }
        ParameterState::Unreadable(why) => {
            let detail = format!("{quoted} cannot be read: {why}.");
            let help = "name a parameter that the daemon may read with ssm:GetParameter";
            let code = ProblemCode::Unreadable;
            return report_argument(section, code, PARAMETER, detail, help);
        }
    };
    let error = match serde_json::from_str::<Json>(&text) {
        Ok(json) if json.is_object() => return Some(NamedValue::not_sensitive(from_json(&json))),
        Ok(_) => OutputsError::NotAMap,
        Err(error) => OutputsError::Json(error),
    };
    let detail = format!("{quoted} does not contain Terraform outputs: {error}.");
    let help = "write it with jsonencode({ OUTPUT = value })";
    let code = ProblemCode::InvalidValue;
    report_argument(section, code, PARAMETER, detail, help)
}

fn of_file(reader: &Decoder<'_>, section: &DecodedBlock, argument: &str) -> Option<Value> {
    let environment = &reader.evaluator.environment;
    let path = environment.resolve(section.text(argument)?);
    let quoted = match section.get(argument) {
        Some(read) if read.sensitive => "The file".to_owned(),
        _ => path.display().to_string(),
    };
    let text = match (environment.read)(&path) {
        Ok(text) => text,
        Err(error) => {
            let detail = format!("{quoted} cannot be read: {error}.");
            let help = "name a file that the user of the daemon can read";
            let code = ProblemCode::Unreadable;
            return report_argument(section, code, argument, detail, help);
        }
    };
    let outputs =
        serde_json::from_str(&text).map_err(OutputsError::Json).and_then(
            |json: Json| match argument {
                "state" => of_state(&json),
                _ => output_values(&json),
            },
        );
    match outputs {
        Ok((value, left_out)) => {
            reader.evaluator.leave_out(left_out);
            Some(value)
        }
        Err(error) => {
            let detail = format!("{quoted} does not contain Terraform outputs: {error}.");
            let help = match argument {
                "state" => "name a state file of Terraform 0.12 or later",
                _ => "write it with terraform output -json",
            };
            let code = ProblemCode::InvalidValue;
            report_argument(section, code, argument, detail, help)
        }
    }
}

/// Why a text does not contain Terraform outputs, without a full stop.
#[derive(Debug, Error)]
enum OutputsError {
    #[error("it is not JSON: {0}")]
    Json(serde_json::Error),
    #[error("it is not a map of outputs")]
    NotAMap,
    #[error("it is not a state of version {STATE_VERSION}")]
    StateVersion,
    #[error("the state has no outputs")]
    NoOutputs,
    #[error("{0:?} has no value")]
    NoValue(String),
}

/// The outputs of a state.
fn of_state(state: &Json) -> Result<(Value, Vec<String>), OutputsError> {
    if state.get("version").and_then(Json::as_i64) != Some(STATE_VERSION) {
        return Err(OutputsError::StateVersion);
    }
    output_values(state.get("outputs").ok_or(OutputsError::NoOutputs)?)
}

/// The values of outputs that are not sensitive, and the names of the sensitive ones.
fn output_values(outputs: &Json) -> Result<(Value, Vec<String>), OutputsError> {
    let Json::Object(outputs) = outputs else {
        return Err(OutputsError::NotAMap);
    };
    let (mut values, mut left_out) = (Map::new(), Vec::new());
    for (name, output) in outputs {
        let Some(value) = output.get("value") else {
            return Err(OutputsError::NoValue(name.clone()));
        };
        match output.get("sensitive").and_then(Json::as_bool) {
            Some(true) => left_out.push(name.clone()),
            _ => drop(values.insert(name.clone(), from_json(value))),
        }
    }
    Ok((Value::Object(values), left_out))
}
