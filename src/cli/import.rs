//! `outrigger import`: HCL of Karpenter's objects in YAML or JSON.
//! It must not know what becomes of them.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;

use super::{diagnostics, stdin};
use crate::config::SourceFile;
use crate::karpenter::import::{CLUSTER_EXAMPLE, ImportOptions, Imported, import};
use crate::shell::files;

/// The file with a cluster to start from.
const CLUSTERS: &str = "clusters.hcl";

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// A file, or a directory of files that end in .yaml, .yml or .json; `-` is standard input
    #[arg(short = 'f', long = "file", value_name = "FILE", default_value = "-")]
    files: Vec<PathBuf>,
    /// Write files into this directory, none that is there already, in place of standard output
    #[arg(short = 'o', long = "output", value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Clusters it is for, by name or pattern; all if missing
    #[arg(long = "cluster", value_name = "GLOB", num_args = 1.., value_delimiter = ',')]
    clusters: Vec<String>,
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut sources = Vec::new();
    for path in &arguments.files {
        sources.extend(read(path)?);
    }
    let options = ImportOptions {
        clusters: arguments.clusters.clone(),
    };
    let imported = import(&sources, &options)?;
    match &arguments.directory {
        Some(directory) => write(directory, &imported)?,
        None => io::stdout().write_all(imported.text().as_bytes())?,
    }
    let skipped = imported.skipped.iter();
    let skipped =
        skipped.map(|(kind, count)| format!("skipped {kind} ({count}): nothing of Karpenter's"));
    Ok(diagnostics::carried(&imported.losses, skipped))
}

fn read(path: &Path) -> anyhow::Result<Vec<SourceFile>> {
    if path == Path::new("-") {
        return Ok(vec![SourceFile::new("<stdin>", stdin::read()?)]);
    }
    let mut paths = vec![path.to_owned()];
    if path.is_dir() {
        let named = |path: &PathBuf| {
            let end = path.extension().unwrap_or_default();
            ["yaml", "yml", "json"].iter().any(|own| end == *own) && path.is_file()
        };
        let entries = fs::read_dir(path).with_context(|| format!("read {}", path.display()))?;
        let entries = entries.map(|entry| entry.map(|entry| entry.path()));
        let all: io::Result<Vec<PathBuf>> = entries.collect();
        paths = all.with_context(|| format!("read {}", path.display()))?;
        paths.retain(named);
        paths.sort();
    }
    let text = |path: &PathBuf| {
        let text = files::read_limited(path)?;
        Ok(SourceFile::new(path.display().to_string(), text))
    };
    paths.iter().map(text).collect()
}

/// Writes each kind of blocks into a file, and a cluster to start from where no other file is.
fn write(directory: &Path, imported: &Imported) -> anyhow::Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
    let mut files: Vec<(&str, &str)> = Vec::new();
    let entries = fs::read_dir(directory);
    let mut entries = entries.with_context(|| format!("read {}", directory.display()))?;
    let is_hcl = |entry: &fs::DirEntry| entry.path().extension().is_some_and(|end| end == "hcl");
    if !entries.any(|entry| entry.as_ref().is_ok_and(is_hcl)) {
        files.push((CLUSTERS, CLUSTER_EXAMPLE));
    }
    files.extend(
        imported
            .parts
            .iter()
            .map(|part| (part.file, part.text.as_str())),
    );
    // All or nothing, as far as can be seen beforehand.
    let mut paths = files.iter().map(|(name, _)| directory.join(name));
    if let Some(path) = paths.find(|path| path.exists()) {
        bail!("write {}: it is there already", path.display());
    }
    for (name, text) in files {
        let path = directory.join(name);
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        let mut file = file.with_context(|| format!("write {}", path.display()))?;
        let written = file.write_all(text.as_bytes());
        written.with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}
