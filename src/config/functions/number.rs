//! Number functions.

use hcl::{Number, Value};

use super::{Args, FunctionError, FunctionResult};

/// Terraform's limit on the length of a range.
const RANGE_MAX: usize = 1024;

pub(super) fn abs(args: &Args<'_>) -> FunctionResult {
    let number = args.number(0)?;
    let negative = number.as_f64().is_some_and(|float| float < 0.0);
    Ok(Value::Number(if negative { -number } else { number }))
}

pub(super) fn ceil(args: &Args<'_>) -> FunctionResult {
    finite_number(args.float(0)?.ceil())
}

pub(super) fn floor(args: &Args<'_>) -> FunctionResult {
    finite_number(args.float(0)?.floor())
}

pub(super) fn max(args: &Args<'_>) -> FunctionResult {
    pick_number(args, |best, other| other > best)
}

pub(super) fn min(args: &Args<'_>) -> FunctionResult {
    pick_number(args, |best, other| other < best)
}

fn pick_number(args: &Args<'_>, better: fn(f64, f64) -> bool) -> FunctionResult {
    let mut best = args.number(0)?;
    for arg in 1..args.values.len() {
        let number = args.number(arg)?;
        if better(best.as_f64().unwrap_or_default(), number.as_f64().unwrap_or_default()) {
            best = number;
        }
    }
    Ok(Value::Number(best))
}

pub(super) fn sum(args: &Args<'_>) -> FunctionResult {
    let mut integers = Some(0_i64);
    let mut floats = 0.0;
    for item in args.list(0)? {
        let Some(number) = crate::config::value::to_number(item) else {
            return args.type_error(0, "a list of numbers");
        };
        floats += number.as_f64().unwrap_or_default();
        integers = integers.and_then(|sum| sum.checked_add(number.as_i64()?));
    }
    match integers {
        Some(sum) => Ok(Value::from(sum)),
        None => finite_number(floats),
    }
}

pub(super) fn range(args: &Args<'_>) -> FunctionResult {
    let (start, end) = match args.values.len() {
        1 => (0.0, args.float(0)?),
        _ => (args.float(0)?, args.float(1)?),
    };
    let step = match args.values.len() {
        3 => args.float(2)?,
        _ if start <= end => 1.0,
        _ => -1.0,
    };
    if step == 0.0 || (step > 0.0) != (start <= end) {
        let text = "the step must lead from the start to the end";
        return Err(FunctionError::at_argument(2, text));
    }
    let mut items = Vec::new();
    let mut next = start;
    while if step > 0.0 { next < end } else { next > end } {
        if items.len() == RANGE_MAX {
            return Err(format!("more than {RANGE_MAX} numbers").into());
        }
        items.push(finite_number(next)?);
        next += step;
    }
    Ok(Value::Array(items))
}

fn finite_number(float: f64) -> FunctionResult {
    match Number::from_f64(float) {
        Some(number) => Ok(Value::Number(number)),
        None => Err("the result is not a finite number".into()),
    }
}
