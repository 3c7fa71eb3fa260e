//! The functions an expression may call, with their numbers of arguments. Names and meanings are
//! Terraform's.
//!
//! All functions are deterministic: no clock, no random values, no commands.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hcl::{Map, Number, Value};
use thiserror::Error;

use crate::config::settings::SsmOutput;
use crate::config::value;

// `yamldecode`.
mod yaml;
// Encoding functions, files, secrets, environment.
pub(super) mod encoding;
// String functions.
mod string;
// List, set and map functions.
mod collection;
// Number functions.
mod number;

/// Why a file cannot be read, without a full stop.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct FileReadError(pub String);

impl From<&str> for FileReadError {
    fn from(reason: &str) -> Self {
        Self(reason.to_owned())
    }
}

/// Reads a file, or returns the reason why it cannot be read.
pub type FileReader<'a> = dyn Fn(&Path) -> Result<String, FileReadError> + 'a;

/// The inputs of functions other than their arguments.
pub(super) struct Environment<'a> {
    pub(super) dir: &'a Path,
    pub(super) read: &'a FileReader<'a>,
    pub(super) env: &'a BTreeMap<String, String>,
    pub(super) secrets: &'a BTreeMap<String, String>,
    pub(super) parameter: &'a ParameterReader<'a>,
}

/// The state of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParameterState {
    /// Its value.
    Text(String),
    /// The parameter cannot be read: the reason, without a full stop.
    Unreadable(String),
    /// Parameters are not read: the mock value is used.
    Unasked,
}

/// Returns the state of a parameter.
pub type ParameterReader<'a> = dyn Fn(&SsmOutput) -> ParameterState + 'a;

impl Environment<'_> {
    /// Resolves a path relative to the folder of the configuration.
    pub(super) fn resolve(&self, path: &str) -> PathBuf {
        self.dir.join(path)
    }
}

/// An error of a function.
#[derive(Debug)]
pub(super) struct FunctionError {
    /// The index of the invalid argument, if only one argument is invalid.
    pub(super) arg: Option<usize>,
    /// The message, without a full stop.
    pub(super) text: String,
}

impl FunctionError {
    /// An error caused by this argument.
    fn at_argument(arg: usize, text: impl Into<String>) -> Self {
        let (arg, text) = (Some(arg), text.into());
        Self { arg, text }
    }
}

impl From<String> for FunctionError {
    fn from(text: String) -> Self {
        Self { arg: None, text }
    }
}

impl From<&str> for FunctionError {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

type FunctionResult = Result<Value, FunctionError>;

/// The arguments of a call.
pub(super) struct Args<'a> {
    pub(super) values: Vec<Value>,
    pub(super) environment: &'a Environment<'a>,
}

/// A function.
pub(super) struct Function {
    pub(super) name: &'static str,
    pub(super) args_min: usize,
    pub(super) args_max: usize,
    pub(super) call: fn(&Args<'_>) -> FunctionResult,
}

const MANY: usize = usize::MAX;

const fn function(
    name: &'static str,
    args_min: usize,
    args_max: usize,
    call: fn(&Args<'_>) -> FunctionResult,
) -> Function {
    Function { name, args_min, args_max, call }
}

/// Functions that the evaluator implements, because they need unevaluated arguments.
pub(super) const SPECIAL: [&str; 3] = ["can", "templatefile", "try"];

/// Every other function, by name.
pub(super) const FUNCTIONS: &[Function] = &[
    function("abs", 1, 1, number::abs),
    function("base64decode", 1, 1, encoding::base64decode),
    function("base64encode", 1, 1, encoding::base64encode),
    function("ceil", 1, 1, number::ceil),
    function("coalesce", 1, MANY, collection::coalesce),
    function("coalescelist", 1, MANY, collection::coalescelist),
    function("compact", 1, 1, collection::compact),
    function("concat", 1, MANY, collection::concat),
    function("contains", 2, 2, collection::contains),
    function("distinct", 1, 1, collection::distinct),
    function("element", 2, 2, collection::element),
    function("endswith", 2, 2, string::endswith),
    function("env", 1, 2, encoding::env),
    function("file", 1, 1, encoding::file),
    function("fileexists", 1, 1, encoding::fileexists),
    function("flatten", 1, 1, collection::flatten),
    function("floor", 1, 1, number::floor),
    function("format", 1, MANY, string::format),
    function("formatlist", 1, MANY, string::formatlist),
    function("index", 2, 2, collection::index),
    function("join", 2, MANY, string::join),
    function("jsondecode", 1, 1, encoding::jsondecode),
    function("jsonencode", 1, 1, encoding::jsonencode),
    function("keys", 1, 1, collection::keys),
    function("length", 1, 1, collection::length),
    function("lookup", 2, 3, collection::lookup),
    function("lower", 1, 1, string::lower),
    function("max", 1, MANY, number::max),
    function("merge", 0, MANY, collection::merge),
    function("min", 1, MANY, number::min),
    function("one", 1, 1, collection::one),
    function("range", 1, 3, number::range),
    function("regex", 2, 2, string::regex),
    function("regexall", 2, 2, string::regexall),
    function("replace", 3, 3, string::replace),
    function("reverse", 1, 1, collection::reverse),
    function("secret", 1, 1, encoding::secret),
    function("setintersection", 1, MANY, collection::setintersection),
    function("setproduct", 1, MANY, collection::setproduct),
    function("setsubtract", 2, 2, collection::setsubtract),
    function("setunion", 1, MANY, collection::setunion),
    function("slice", 3, 3, collection::slice),
    function("sort", 1, 1, collection::sort),
    function("split", 2, 2, string::split),
    function("startswith", 2, 2, string::startswith),
    function("strcontains", 2, 2, string::strcontains),
    function("substr", 3, 3, string::substr),
    function("sum", 1, 1, number::sum),
    function("title", 1, 1, string::title),
    function("tobool", 1, 1, encoding::tobool),
    function("tolist", 1, 1, collection::tolist),
    function("tomap", 1, 1, collection::tomap),
    function("tonumber", 1, 1, encoding::tonumber),
    function("toset", 1, 1, collection::toset),
    function("tostring", 1, 1, encoding::tostring),
    function("trim", 2, 2, string::trim),
    function("trimprefix", 2, 2, string::trimprefix),
    function("trimspace", 1, 1, string::trimspace),
    function("trimsuffix", 2, 2, string::trimsuffix),
    function("upper", 1, 1, string::upper),
    function("values", 1, 1, collection::values),
    function("yamldecode", 1, 1, encoding::yamldecode),
    function("yamlencode", 1, 1, encoding::yamlencode),
    function("zipmap", 2, 2, collection::zipmap),
];

/// The function with this name.
pub(super) fn find(name: &str) -> Option<&'static Function> {
    FUNCTIONS.iter().find(|function| function.name == name)
}

impl Args<'_> {
    fn value_at(&self, arg: usize) -> &Value {
        self.values.get(arg).unwrap_or(&Value::Null)
    }

    fn type_error<T>(&self, arg: usize, wants: &str) -> Result<T, FunctionError> {
        let got = match self.value_at(arg) {
            text @ Value::String(_) if wants != "a list" && wants != "a map" => {
                value::quote_value(text)
            }
            other => value::type_name(other).to_owned(),
        };
        let text = format!("argument {} must be {wants}, not {got}", arg + 1);
        Err(FunctionError::at_argument(arg, text))
    }

    fn text(&self, arg: usize) -> Result<String, FunctionError> {
        match value::to_text(self.value_at(arg)) {
            Some(text) => Ok(text),
            None => self.type_error(arg, "a string"),
        }
    }

    fn number(&self, arg: usize) -> Result<Number, FunctionError> {
        match value::to_number(self.value_at(arg)) {
            Some(number) => Ok(number),
            None => self.type_error(arg, "a number"),
        }
    }

    fn float(&self, arg: usize) -> Result<f64, FunctionError> {
        Ok(self.number(arg)?.as_f64().unwrap_or_default())
    }

    fn integer(&self, arg: usize) -> Result<i64, FunctionError> {
        match self.number(arg)?.as_i64() {
            Some(integer) => Ok(integer),
            None => self.type_error(arg, "an integer"),
        }
    }

    fn list(&self, arg: usize) -> Result<&[Value], FunctionError> {
        match self.value_at(arg) {
            Value::Array(items) => Ok(items),
            _ => self.type_error(arg, "a list"),
        }
    }

    fn map(&self, arg: usize) -> Result<&Map<String, Value>, FunctionError> {
        match self.value_at(arg) {
            Value::Object(items) => Ok(items),
            _ => self.type_error(arg, "a map"),
        }
    }

    fn texts(&self, arg: usize) -> Result<Vec<String>, FunctionError> {
        let texts: Option<Vec<String>> = self.list(arg)?.iter().map(value::to_text).collect();
        match texts {
            Some(texts) => Ok(texts),
            None => self.type_error(arg, "a list of strings"),
        }
    }
}
