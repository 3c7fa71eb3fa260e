//! Converts HCL files to the settings of clusters, or returns diagnostics.
//!
//! ```text
//! SourceFile ─ source, native | json ─▶ tree ─ read (schema, eval) ─▶ sections ─ lower ─▶ Config
//!                                         └──────────── report ────────────┴──▶ Vec<Problem>
//! ```
//!
//! All files form one module, as in Terraform: no file overrides another, and a duplicate label is
//! an error that shows both definitions. All errors are reported in one run.

// The modules are ordered by dependency: a module uses only modules above it.

// Diagnostics: code, message, source span, hint.
pub mod diagnostic;
// Source files, with lines and columns of spans.
pub mod source;
// Differences between two configurations, by argument.
pub mod config_diff;
// The result: settings of clusters and of the daemon.
pub mod settings;
// Formats of external ids, such as AWS resource ids.
pub mod id_format;
// Blocks and arguments, with types and defaults.
pub mod schema;
// Syntax tree of HCL and JSON files.
mod syntax;
// Values of expressions: types, conversions, sizes.
pub(crate) mod value;
// Redaction of sensitive values in diagnostics.
mod secrets;
// Functions of the expression language.
mod functions;
// Evaluation of expressions.
mod eval;
// Collector of diagnostics.
mod report;
// Hints for common syntax errors.
mod syntax_hints;
// Canonical format of HCL, as `terraform fmt`.
pub mod format;
// Syntax of Kubernetes label keys, values and names.
pub(crate) mod kubernetes_names;
// Conversion of values to argument types.
mod convert;
// Decoded blocks, argument by argument.
mod decoded_block;
// Decoder of blocks against the schema.
mod decode;
// Type expressions of variables.
mod types;
// Input variables: sources, types, validation.
mod variables;
// Local values, in dependency order.
mod locals;
// Terraform outputs as data sources.
mod terraform_output;
// Decoded blocks to model types.
mod lower;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use hcl::Value;

use crate::config::config_diff::ConfigValues;
use crate::config::decode::{Decoder, check_names};
use crate::config::diagnostic::{Diagnostic, ProblemCode, Severity};
use crate::config::eval::{EvalScope, Evaluator, NamedValue};
use crate::config::functions::{Environment, FUNCTIONS, SPECIAL};
pub use crate::config::functions::{FileReadError, FileReader, ParameterReader, ParameterState};
use crate::config::report::{Reporter, SpannedDiagnostic, error_at, warning_at};
use crate::config::schema::BlockType;
pub use crate::config::settings::Config;
pub use crate::config::source::SourceFile;
use crate::config::source::{ConfigFiles, Span};
use crate::config::syntax::{Block, Body, Expr};
use crate::config::variables::{GivenSource, Strictness, VariableValue};

/// A variable's value from the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariableInput {
    /// Name of the variable.
    pub name: String,
    /// Its value: a string or, depending on the type of the variable, an expression.
    pub value: String,
}

/// All inputs of a configuration other than its files.
#[derive(Clone)]
pub struct Inputs<'a> {
    /// Values from the command line. They take precedence over files. Of several values for one
    /// variable, the last applies.
    pub vars: Vec<VariableInput>,
    /// Variable files (`name = value`), `*.auto.vars.hcl` first. Of several values for one
    /// variable, the last applies.
    pub var_files: Vec<SourceFile>,
    /// The environment: for `env(…)`, and `OUTRIGGER_VAR_x` for the variable `x`.
    pub env: BTreeMap<String, String>,
    /// Secrets by name, for `secret(…)`.
    pub secrets: BTreeMap<String, String>,
    /// Folder of the configuration: `path.config`, and the base of relative paths.
    pub dir: PathBuf,
    /// Reads a file for `file(…)`, `templatefile(…)` and `fileexists(…)`.
    pub read: &'a FileReader<'a>,
    /// Reads a parameter, for `data "terraform_output"`.
    pub parameter: &'a ParameterReader<'a>,
}

impl Default for Inputs<'_> {
    fn default() -> Self {
        Self {
            vars: Vec::new(),
            var_files: Vec::new(),
            env: BTreeMap::new(),
            secrets: BTreeMap::new(),
            dir: PathBuf::new(),
            read: &no_files,
            parameter: &|_| ParameterState::Unasked,
        }
    }
}

fn no_files(_: &Path) -> Result<String, FileReadError> {
    Err("files cannot be read here".into())
}

/// Environment variables with this prefix are values of variables.
const VAR_PREFIX: &str = "OUTRIGGER_VAR_";

/// Loads a configuration, or returns all diagnostics, warnings included.
pub fn load(files: &[SourceFile], inputs: &Inputs<'_>) -> Result<Config, Vec<Diagnostic>> {
    let mut sources = ConfigFiles::default();
    let (parsed, syntax) = parse_all(&mut sources, files, schema::blocks::root_block());
    let (given, mut problems) = given_values(&mut sources, inputs);
    let reporter = Rc::new(Reporter::new(sources));
    let broken = !syntax.is_empty() || !problems.is_empty();
    problems.extend(syntax);
    for finding in problems {
        reporter.add(finding);
    }
    let mut body = Body::default();
    for file in parsed {
        body.attrs.extend(file.attrs);
        body.blocks.extend(file.blocks);
    }
    body.blocks.iter_mut().for_each(Block::settle_type);
    check_names(&reporter, &body, schema::blocks::root_block(), "");
    // Other checks of an incomplete module would report errors that do not exist.
    if broken {
        return Err(reporter.take_problems());
    }
    let evaluator = Evaluator::new(Environment {
        dir: &inputs.dir,
        read: inputs.read,
        env: &inputs.env,
        secrets: &inputs.secrets,
        parameter: inputs.parameter,
    });
    let config = evaluate_blocks(&reporter, &evaluator, &body.blocks, &given);
    let failed = reporter.has_errors();
    // After an error, an object that is used may seem unused.
    if !failed {
        warn_unused(&reporter, &body);
    }
    let problems = evaluator.secrets.kept_from(reporter.take_problems());
    if failed {
        return Err(problems);
    }
    Ok(Config { warnings: problems, ..config })
}

/// Names of all functions, in order.
pub fn function_names() -> Vec<&'static str> {
    let mut names: Vec<&str> = FUNCTIONS.iter().map(|function| function.name).collect();
    names.extend(SPECIAL);
    names.sort_unstable();
    names
}

fn evaluate_blocks(
    reporter: &Rc<Reporter>,
    evaluator: &Evaluator<'_>,
    blocks: &[Block],
    given: &[VariableValue],
) -> Config {
    let mut scope = EvalScope::default();
    let dir = evaluator.environment.dir.display().to_string();
    let path = [("config".to_owned(), Some(NamedValue::not_sensitive(Value::String(dir))))];
    scope.roots.insert("path", path.into_iter().collect());

    let written = RefCell::new(ConfigValues::default());
    let nothing = EvalScope::default();
    let base = Decoder { reporter, evaluator, scope: &nothing, blocks, written: &written };
    let declared = base.with_scope(&scope).decode_sections("variable");
    variables::check_given(&base.with_scope(&scope), given, &declared);
    let resolved = variables::resolve_variables(&base.with_scope(&scope), &declared, given);
    scope.roots.insert(
        "var",
        resolved.iter().map(|(name, resolved)| (name.clone(), resolved.known.clone())).collect(),
    );
    variables::check_validations(&base.with_scope(&scope), &declared, &resolved);

    let declared = base.with_scope(&scope).decode_sections(terraform_output::BLOCK);
    let outputs = terraform_output::read_outputs(&base.with_scope(&scope), &declared);
    let polled = terraform_output::polled_parameters(&declared);
    let data = [(terraform_output::TYPE.to_owned(), outputs)];
    scope.roots.insert("data", data.into_iter().collect());

    // The name of a block evaluates to the address of the block, which reference arguments parse.
    for kind in ["node_class", "pool", "schedule"] {
        let names = base.blocks_of(kind).filter_map(|block| block.labels.first());
        let addresses = names.map(|(name, _)| {
            let address = Value::String(format!("{kind}.{name}"));
            (name.clone(), Some(NamedValue::not_sensitive(address)))
        });
        scope.roots.insert(kind, addresses.collect());
    }
    let locals: Vec<&Block> = base.blocks_of("locals").collect();
    locals::resolve_locals(reporter, evaluator, &locals, &mut scope);
    let lowered = lower::lower_blocks(&base.with_scope(&scope));
    Config { polled, written: written.take(), ..lowered }
}

/// The trees of all files, and their syntax errors.
fn parse_all(
    sources: &mut ConfigFiles,
    files: &[SourceFile],
    schema: &'static BlockType,
) -> (Vec<Body>, Vec<SpannedDiagnostic>) {
    let (mut bodies, mut findings) = (Vec::new(), Vec::new());
    for file in files {
        let index = sources.add(file);
        let text = sources.text(index);
        let is_json = Path::new(sources.name(index)).extension().is_some_and(|end| end == "json");
        if is_json {
            let (body, refusals) = syntax::json::parse(text, index, schema);
            bodies.push(body);
            findings.extend(refusals.into_iter().map(|refusal| {
                error_at(ProblemCode::Syntax, refusal.span, refusal.detail).maybe_help(refusal.help)
            }));
            continue;
        }
        match syntax::native::parse(text, index) {
            Ok(body) => bodies.push(body),
            Err(error) => {
                let offset = error.location().offset();
                findings.push(syntax_hints::explain_error(text, index, offset, error.message()));
            }
        }
    }
    (bodies, findings)
}

/// A variable file may contain any names.
static VALUES: BlockType = BlockType {
    name: "vars",
    label: None,
    repeat: schema::Occurrence::Once,
    about: "",
    arguments: &[],
    blocks: &[],
    open: true,
};

/// All values for variables, in ascending order of precedence.
fn given_values(
    sources: &mut ConfigFiles,
    inputs: &Inputs<'_>,
) -> (Vec<VariableValue>, Vec<SpannedDiagnostic>) {
    let mut given = Vec::new();
    for (key, value) in &inputs.env {
        if let Some(name) = key.strip_prefix(VAR_PREFIX) {
            let file = sources.add(&SourceFile::new(key.as_str(), value.as_str()));
            given.push(text_value(file, name, value, Strictness::Ignored));
        }
    }
    let (bodies, mut findings) = parse_all(sources, &inputs.var_files, &VALUES);
    for attr in bodies.iter().flat_map(|body| &body.attrs) {
        given.push(VariableValue {
            name: attr.name.clone(),
            source: GivenSource::Expr(attr.expr.clone()),
            span: attr.expr.span,
            strict: Strictness::Warning,
        });
    }
    for block in bodies.iter().flat_map(|body| &body.blocks) {
        let detail = "A variable file must contain only arguments.";
        findings.push(error_at(ProblemCode::UnknownBlock, block.header(), detail));
    }
    for input in &inputs.vars {
        let file = sources.add(&SourceFile::new(format!("--var {}", input.name), &*input.value));
        given.push(text_value(file, &input.name, &input.value, Strictness::Error));
    }
    (given, findings)
}

/// The value of a variable that is the whole text of this source file.
fn text_value(file: usize, name: &str, value: &str, strict: Strictness) -> VariableValue {
    VariableValue {
        name: name.to_owned(),
        source: GivenSource::Text(value.to_owned()),
        span: Span::new(file, 0, value.len()),
        strict,
    }
}

/// Warns about objects that are declared but not used.
fn warn_unused(reporter: &Reporter, body: &Body) {
    let mut used: BTreeSet<(&str, &str)> = BTreeSet::new();
    for block in &body.blocks {
        visit_expressions(block, &mut |attr_block, expr| {
            let label = block.labels.first().map(|(label, _)| label.as_str());
            for (root, name) in locals::path_names(expr) {
                // A reference in the validation rules of a variable is not a use of it.
                if !(root == "var" && attr_block == "variable" && label == Some(name)) {
                    used.insert((root, name));
                }
            }
        });
    }
    for block in &body.blocks {
        let (title, attrs) = (block.title(), block.body.attrs.iter());
        let (root, title, declared): (_, _, Vec<(&str, Span)>) = match block.kind.as_str() {
            "locals" => {
                let names = attrs.map(|attr| (attr.name.as_str(), attr.name_span));
                ("local", "locals", names.collect())
            }
            kind @ ("variable" | "node_class" | "schedule") => {
                let label = block.labels.first().map(|(name, span)| (name.as_str(), *span));
                let root = if kind == "variable" { "var" } else { kind };
                (root, title.as_str(), label.into_iter().collect())
            }
            _ => continue,
        };
        for (name, span) in declared {
            if !used.contains(&(root, name)) {
                let detail = format!("{root}.{name} is not used.");
                let finding = warning_at(ProblemCode::Unused, span, detail);
                reporter.add(finding.within(title));
            }
        }
    }
}

/// Calls `see` with every expression of a block, and the type of the top-level block.
fn visit_expressions<'a>(block: &'a Block, see: &mut dyn FnMut(&str, &'a Expr)) {
    fn visit_body<'a>(kind: &str, body: &'a Body, see: &mut dyn FnMut(&str, &'a Expr)) {
        for attr in &body.attrs {
            see(kind, &attr.expr);
        }
        for block in &body.blocks {
            visit_body(kind, &block.body, see);
        }
    }
    visit_body(&block.kind, &block.body, see);
}

/// Returns whether a list of diagnostics contains an error.
pub fn has_errors(problems: &[Diagnostic]) -> bool {
    problems.iter().any(|problem| problem.severity == Severity::Error)
}
