//! Loads valid and invalid configurations: the resulting values, and the quality of the errors.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use insta::{assert_snapshot, glob, with_settings};
use outrigger::config::diagnostic::{Diagnostic, render_all};
use outrigger::config::settings::SsmOutput;
use outrigger::config::{
    Config, FileReadError, Inputs, ParameterState, SourceFile, VariableInput, load,
};
use outrigger::model::node_class::NodeIdentity;
use outrigger::model::sweep::SweepSchedule;

mod formatting;
mod functions;
mod node_classes;
mod properties;
mod reference;
mod invalid;
mod secrets;
mod config_diff;

/// The folder in which a case seems to be.
const FOLDER: &str = "/etc/outrigger.d";

/// A configuration with its inputs. Comments at the start of its first file set external values: `#
/// var x=1`, `# env x=1`, `# secret x=1`, `# parameter /x={}`, and `# untold /x=why` for an
/// unreadable parameter. Other parameters are not requested.
struct Case {
    files: Vec<SourceFile>,
    var_files: Vec<SourceFile>,
    folder: Option<PathBuf>,
}

fn name_of(path: &Path) -> String {
    path.file_name().expect("a file has a name").to_string_lossy().into_owned()
}

fn source(path: &Path) -> SourceFile {
    SourceFile::new(name_of(path), fs::read_to_string(path).expect("a case in UTF-8"))
}

impl Case {
    fn file(path: &Path) -> Self {
        Self { files: vec![source(path)], var_files: Vec::new(), folder: None }
    }

    /// A folder: `*.vars.hcl` are values of variables, every other `*.hcl` is configuration.
    fn folder(folder: &Path) -> Self {
        let entries = fs::read_dir(folder).expect("the folder of a case");
        let mut paths: Vec<PathBuf> =
            entries.map(|entry| entry.expect("an entry").path()).collect();
        paths.sort();
        let named = |path: &Path, end: &str| name_of(path).ends_with(end);
        let (values, rest): (Vec<PathBuf>, Vec<PathBuf>) =
            paths.into_iter().partition(|path| named(path, ".vars.hcl"));
        let rest = rest.into_iter();
        let files = rest.filter(|path| named(path, ".hcl") || named(path, ".hcl.json"));
        Self {
            files: files.map(|path| source(&path)).collect(),
            var_files: values.iter().map(|path| source(path)).collect(),
            folder: Some(folder.to_owned()),
        }
    }

    fn of(path: &Path) -> Self {
        if name_of(path) == "main.hcl" {
            Self::folder(path.parent().expect("a case lies in a folder"))
        } else {
            Self::file(path)
        }
    }

    fn load(&self) -> Result<Config, Vec<Diagnostic>> {
        let mut inputs = Inputs {
            var_files: self.var_files.clone(),
            dir: PathBuf::from(FOLDER),
            ..Inputs::default()
        };
        let (mut env, mut secrets) = (BTreeMap::new(), BTreeMap::new());
        let mut parameters = BTreeMap::new();
        let first = self.files.first().map_or("", |file| file.text.as_str());
        for line in first.lines().take_while(|line| line.starts_with('#')) {
            let Some((kind, pair)) = line.trim_start_matches(['#', ' ']).split_once(' ') else {
                continue;
            };
            let Some((name, value)) = pair.split_once('=') else {
                continue;
            };
            let (name, value) = (name.to_owned(), value.to_owned());
            match kind {
                "var" => inputs.vars.push(VariableInput { name, value }),
                "env" => drop(env.insert(name, value)),
                "secret" => drop(secrets.insert(name, value)),
                "parameter" => drop(parameters.insert(name, ParameterState::Text(value))),
                "untold" => drop(parameters.insert(name, ParameterState::Unreadable(value))),
                _ => {}
            }
        }
        (inputs.env, inputs.secrets) = (env, secrets);
        let read = |path: &Path| {
            let inner = path.strip_prefix(FOLDER).ok().zip(self.folder.as_ref());
            let (inner, folder) = inner.ok_or("no such file or directory")?;
            fs::read_to_string(folder.join(inner)).map_err(|_| FileReadError::from("no such file"))
        };
        inputs.read = &read;
        let parameter = |own: &SsmOutput| parameters.get(&own.name).cloned();
        let parameter = |own: &SsmOutput| parameter(own).unwrap_or(ParameterState::Unasked);
        inputs.parameter = &parameter;
        load(&self.files, &inputs)
    }
}

fn load_text(text: &str) -> Result<Config, Vec<Diagnostic>> {
    load(&[SourceFile::new("main.hcl", text)], &Inputs::default())
}

#[test]
fn valid_configurations_load_as_in_their_snapshots() {
    let check = |path: &Path| {
        let name = case_name(path);
        let config = Case::of(path).load();
        let config = config.unwrap_or_else(|problems| panic!("{name}:\n{}", render_all(&problems)));
        with_settings!({
            snapshot_path => "config/good",
            prepend_module_to_snapshot => false,
            omit_expression => true,
            snapshot_suffix => name,
        }, {
            assert_snapshot!("lowered", without_cron(&format!("{config:#?}")));
        });
    };
    glob!("good-config/*.{hcl,json}", check);
    glob!("good-config/*/main.hcl", check);
}

/// The default of a variable, its value in the environment, in files and on the command line. The
/// last one that is set counts.
#[test]
fn variable_values_follow_the_order_of_precedence() {
    let rows: [(bool, &[u32], &[u32], u32); 6] = [
        (false, &[], &[], 1),
        (true, &[], &[], 2),
        (true, &[3], &[], 3),
        (true, &[3, 4], &[], 4),
        (true, &[3], &[5], 5),
        (false, &[], &[5, 6], 6),
    ];
    let text = "variable \"x\" { default = 1 }\ncluster \"a\" {\n  simulated {}\n}\n\
                pool \"a\" {\n  weight = var.x\n}\n";
    for (env, files, vars, expect) in rows {
        let mut inputs = Inputs::default();
        if env {
            let name = "OUTRIGGER_VAR_x".to_owned();
            inputs.env.insert(name, "2".to_owned());
        }
        let file = |own: &u32| SourceFile::new(format!("{own}.vars.hcl"), format!("x = {own}"));
        inputs.var_files = files.iter().map(file).collect();
        let given = |own: &u32| VariableInput { name: "x".to_owned(), value: own.to_string() };
        inputs.vars = vars.iter().map(given).collect();
        let config = load(&[SourceFile::new("main.hcl", text)], &inputs);
        let config = config.unwrap_or_else(|problems| panic!("{}", render_all(&problems)));
        assert_eq!(config.clusters[0].pools[0].weight, expect);
    }
}

/// A parsed schedule has hundreds of lines. The snapshot has its expression.
fn without_cron(debug: &str) -> String {
    let mut out = String::new();
    let mut hidden: Option<usize> = None;
    for line in debug.lines() {
        let indent = line.len() - line.trim_start().len();
        if line.trim_start().starts_with("cron: Cron {") {
            hidden = Some(indent);
        }
        if hidden.is_none() {
            out.push_str(line);
            out.push('\n');
        }
        hidden = hidden.filter(|start| !(indent == *start && line.trim() == "},"));
    }
    out
}

fn case_name(path: &Path) -> String {
    if name_of(path) == "main.hcl" {
        name_of(path.parent().expect("a case lies in a folder"))
    } else {
        name_of(path)
    }
}

#[test]
fn every_shipped_example_loads_without_warnings() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let mut seen = 0;
    for entry in fs::read_dir(folder).expect("the folder of examples") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|end| end == "hcl") {
            let config = Case::file(&path).load();
            let config = config.unwrap_or_else(|problems| panic!("{}", render_all(&problems)));
            assert!(config.warnings.is_empty(), "{}", render_all(&config.warnings));
            seen += 1;
        }
    }
    assert!(seen > 0);
}

/// The module `iam` grants these permissions only on request: `manage_instance_profiles`,
/// `ssm_parameter_arns`, keys.
#[test]
fn shipped_examples_need_only_permissions_that_the_module_iam_grants_by_default() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let variables = fs::read_to_string(root.join("terraform/modules/iam/variables.tf"));
    let variables = variables.expect("the variables of the module");
    let own = variables.split("variable \"manage_instance_profiles\"").nth(1).expect("a variable");
    let own = own.split("\n}").next().expect("its arguments");
    assert!(own.contains("default     = false"), "{own}");
    let examples =
        ["eks.hcl", "k3s.hcl", "outrigger.hcl"].map(|name| root.join("config").join(name));
    for path in examples {
        let config = Case::file(&path).load();
        let config = config.unwrap_or_else(|problems| panic!("{}", render_all(&problems)));
        assert!(config.clusters.iter().any(|cluster| !cluster.node_classes.is_empty()));
        for class in config.clusters.iter().flat_map(|cluster| &cluster.node_classes) {
            let name = (&path, &class.name);
            assert!(matches!(class.identity, Some(NodeIdentity::Profile(_))), "{name:?}");
            let text = format!("{class:?}");
            assert!(
                !text.contains("SsmParameter(") && !text.contains("kms_key_id: Some"),
                "{name:?}"
            );
        }
    }
}

/// Kinds and schedules of the sweeps of a cluster with this HCL, next to those of the top level.
fn sweeps_with(of_cluster: &str) -> Vec<(&'static str, String)> {
    let text = format!(
        r#"
outrigger {{ installation = "tests" }}
sweep "drift" {{ schedule = "0 1 * * *" }}
sweep "expiry" {{ schedule = "0 2 * * *" }}
cluster "one" {{
  region = "eu-central-1"
  kubeconfig {{ path = "/etc/kubeconfig" }}
  {of_cluster}
}}
"#
    );
    let config = load_text(&text).unwrap_or_else(|problems| panic!("{}", render_all(&problems)));
    let sweeps = config.clusters[0].sweeps.iter();
    let expression = |sweep: &SweepSchedule| sweep.schedule.expression().to_owned();
    sweeps.map(|(kind, sweep)| (kind.as_str(), expression(sweep))).collect()
}

#[test]
fn cluster_replaces_or_ignores_sweeps_of_the_top_level() {
    let (drift, expiry) = (("drift", "0 1 * * *".into()), ("expiry", "0 2 * * *".into()));
    assert_eq!(sweeps_with(""), [drift.clone(), expiry.clone()]);
    let replaced = ("drift", "0 3 * * *".to_owned());
    assert_eq!(
        sweeps_with(r#"sweep "drift" { schedule = "0 3 * * *" }"#),
        [replaced, expiry.clone()]
    );
    assert_eq!(sweeps_with(r#"sweep "drift" { schedule = "none" }"#), [expiry]);
    assert_eq!(sweeps_with(r#"sweep "orphans" { schedule = "none" }"#).len(), 2);
}
