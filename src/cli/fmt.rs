//! `outrigger fmt`: files of configuration in their canonical form, as `terraform fmt` has them.
//! It must not know what that form is.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{ArgAction, Args};
use similar::TextDiff;
use tempfile::NamedTempFile;

use super::diagnostics;
use crate::config::SourceFile;
use crate::config::format::format;
use crate::shell::files::{self, FILE_BYTES};

/// Something would be changed, with `--check`; something cannot be read, or is no HCL. The numbers
/// are Terraform's.
const CHANGES: u8 = 3;
const BROKEN: u8 = 2;

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Files and directories; `-` is standard input
    #[arg(value_name = "PATH", default_value = ".")]
    paths: Vec<PathBuf>,
    /// Write nothing, and end with 3 where something would be changed
    #[arg(long)]
    check: bool,
    /// Show what changes
    #[arg(long)]
    diff: bool,
    /// Directories within directories as well
    #[arg(long)]
    recursive: bool,
    /// Name the files that change
    #[arg(
        long,
        value_name = "BOOL",
        default_value = "true",
        default_missing_value = "true"
    )]
    #[arg(num_args = 0..=1, require_equals = true, action = ArgAction::Set)]
    list: bool,
    /// Write the files
    #[arg(
        long,
        value_name = "BOOL",
        default_value = "true",
        default_missing_value = "true"
    )]
    #[arg(num_args = 0..=1, require_equals = true, action = ArgAction::Set)]
    write: bool,
}

pub(crate) fn execute(arguments: &Arguments, colour: bool) -> anyhow::Result<ExitCode> {
    let mut done = Done::default();
    let stdin = Path::new("-");
    if arguments.paths.iter().any(|path| path == stdin) {
        if arguments.paths.len() > 1 {
            bail!("name either files or -, which is standard input");
        }
        done.take(arguments, None, &read_stdin()?, colour)?;
        return Ok(done.code(arguments));
    }
    for path in &arguments.paths {
        let found = match files::native_sources(path, arguments.recursive) {
            Ok(found) => found,
            Err(fault) => {
                done.broke(&[fault.problem()], colour);
                continue;
            }
        };
        for path in found {
            match files::read_limited(&path) {
                Ok(text) => done.take(arguments, Some(&path), &text, colour)?,
                Err(fault) => done.broke(&[fault.problem()], colour),
            }
        }
    }
    Ok(done.code(arguments))
}

/// What has become of the files so far.
#[derive(Debug, Default)]
struct Done {
    changes: bool,
    broken: bool,
}

impl Done {
    fn broke(&mut self, problems: &[crate::config::problem::Problem], colour: bool) {
        self.broken = true;
        diagnostics::show(problems, colour);
    }

    /// One text, of a file or of standard input, which is answered on standard output.
    fn take(
        &mut self,
        arguments: &Arguments,
        path: Option<&Path>,
        text: &str,
        colour: bool,
    ) -> anyhow::Result<()> {
        let name = path.map_or("<stdin>".into(), |path| path.display().to_string());
        let formatted = match format(&SourceFile::new(&*name, text)) {
            Ok(formatted) => formatted,
            Err(problems) => {
                self.broke(&problems, colour);
                return Ok(());
            }
        };
        let changes = formatted != text;
        self.changes |= changes;
        let mut out = io::stdout().lock();
        if changes && arguments.list && path.is_some() {
            writeln!(out, "{name}")?;
        }
        if changes && arguments.diff {
            let diff = TextDiff::from_lines(text, &formatted);
            let (old, new) = (format!("old/{name}"), format!("new/{name}"));
            write!(out, "{}", diff.unified_diff().header(&old, &new))?;
        }
        match path {
            _ if arguments.check || !arguments.write => {}
            Some(path) if changes => {
                replace(path, &formatted).with_context(|| format!("write {name}"))?;
            }
            Some(_) => {}
            None if arguments.diff => {}
            None => out.write_all(formatted.as_bytes())?,
        }
        Ok(())
    }

    fn code(&self, arguments: &Arguments) -> ExitCode {
        match self {
            Self { broken: true, .. } => ExitCode::from(BROKEN),
            Self { changes: true, .. } if arguments.check => ExitCode::from(CHANGES),
            _ => ExitCode::SUCCESS,
        }
    }
}

/// The text takes the file's place whole or not at all; a link stays one.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let path = fs::canonicalize(path)?;
    let folder = path.parent().context("it has no folder")?;
    let mut file = NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.as_file()
        .set_permissions(fs::metadata(&path)?.permissions())?;
    file.persist(&path)?;
    Ok(())
}

fn read_stdin() -> anyhow::Result<String> {
    let mut text = String::new();
    let mut limited = io::stdin().lock().take(FILE_BYTES + 1);
    limited
        .read_to_string(&mut text)
        .context("read standard input")?;
    if limited.limit() == 0 {
        bail!("standard input has more than {FILE_BYTES} bytes");
    }
    Ok(text)
}
