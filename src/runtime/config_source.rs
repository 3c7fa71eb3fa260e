//! Reads the configuration from files, and from parameters that change at runtime.
//!
//! The last values of parameters are saved in the state directory of the daemon. A daemon that
//! starts while AWS is unreachable uses the saved values.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, join_all};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout};

use crate::config::diagnostic::{Diagnostic, ProblemCode};
use crate::config::settings::{Polled, SsmOutput};
use crate::config::{Config, ParameterState};
use crate::host::files::{ConfigSources, LoadedSources, ParameterUnavailable};
use crate::host::{clock, files, text};

/// Timeout of reading one parameter.
const LIMIT: Duration = Duration::from_secs(30);

/// File with the last parameter values, in the state directory.
const COPY: &str = "parameters.json";

/// Reads the configuration with live parameters. Saves nothing.
pub(crate) async fn load_config(wanted: &ConfigSources) -> Result<Config, Vec<Diagnostic>> {
    ConfigSource::new(wanted.clone(), None).read_config().await
}

/// Reads a parameter.
type Ask = Box<dyn Fn(SsmOutput) -> BoxFuture<'static, Result<String, ParameterUnavailable>>>;

/// Files and parameters that make a configuration.
pub(crate) struct ConfigSource {
    wanted: ConfigSources,
    ask: Ask,
    /// File for the last values.
    copy: Option<PathBuf>,
    /// Inputs of the last configuration, and of the configuration before it.
    made: Revision,
    before: Option<Revision>,
    /// True if a retry may resolve the error of a configuration.
    is_retryable: bool,
    /// Parameters that could not be read, each with the reason. Their last values are used.
    stale: Vec<(String, String)>,
}

/// The inputs of a configuration.
#[derive(Default)]
struct Revision {
    texts: Rc<LoadedSources>,
    held: BTreeMap<SsmOutput, ParameterState>,
    /// When each parameter is read again.
    due: Vec<(Polled, Instant)>,
}

impl Revision {
    fn new(
        texts: Rc<LoadedSources>,
        parameters: BTreeMap<SsmOutput, ParameterState>,
        config: &Config,
    ) -> Self {
        let now = clock::monotonic_now();
        Self {
            due: config
                .polled
                .iter()
                .filter_map(|polled| Some((polled.clone(), next_read(polled, now)?)))
                .collect(),
            texts,
            held: parameters,
        }
    }
}

impl ConfigSource {
    /// Creates a source without reading anything.
    pub(crate) fn new(wanted: ConfigSources, state_directory: Option<&Path>) -> Self {
        Self::with_reader(
            wanted,
            state_directory,
            Box::new(|output| read_parameter(output).boxed()),
        )
    }

    fn with_reader(wanted: ConfigSources, state_directory: Option<&Path>, ask: Ask) -> Self {
        Self {
            wanted,
            ask,
            copy: state_directory.map(|directory| directory.join(COPY)),
            made: Revision::default(),
            before: None,
            is_retryable: false,
            stale: Vec::new(),
        }
    }

    /// Returns whether a retry may resolve the error of the last configuration. This is the case if
    /// the configuration depends on external values that were missing, invalid or outdated.
    pub(crate) fn is_retryable(&self) -> bool {
        self.is_retryable
    }

    /// Restores the inputs of the previous configuration, because the last configuration could not
    /// be applied. Changes from the previous configuration are then reported again.
    pub(crate) fn on_rejected(&mut self) {
        if let Some(before) = self.before.take() {
            let now = clock::monotonic_now();
            self.made = before;
            for (polled, due) in &mut self.made.due {
                *due = next_read(polled, now).unwrap_or(*due);
            }
            self.save_parameters();
        }
    }

    /// Reads the configuration. If the new configuration is invalid, the last configuration is
    /// kept.
    pub(crate) async fn read_config(&mut self) -> Result<Config, Vec<Diagnostic>> {
        let texts = Rc::new(files::read_sources(&self.wanted));
        let requested = RefCell::new(BTreeSet::new());
        let first = texts.build_config(&|text| {
            requested.borrow_mut().insert(text.clone());
            ParameterState::Unasked
        });
        let requested = requested.into_inner();
        if requested.is_empty() {
            self.is_retryable = false;
            let config = first?;
            self.store_revision(texts, BTreeMap::new(), &config);
            return Ok(config);
        }
        let parameters = self.read_parameters(requested).await;
        // A configuration that is valid with mock values can fail only because of external values.
        self.is_retryable = first.is_ok() || !self.stale.is_empty() || self.is_retryable;
        let mut config = texts.build_config(&|text| parameter_state(&parameters, text))?;
        let stale = self.stale.iter().map(|(parameter, why)| {
            let detail = format!("Using the last known value of parameter {parameter}: {why}.");
            Diagnostic::warning(ProblemCode::Unreadable, detail)
        });
        config.warnings.extend(stale);
        self.store_revision(texts, parameters, &config);
        Ok(config)
    }

    /// Waits until the value of a parameter changes. Returns the configuration from the files as
    /// last read, or an error.
    pub(crate) async fn wait_for_change(&mut self) -> Result<Config, Vec<Diagnostic>> {
        loop {
            let Some(next) = self.made.due.iter().map(|(_, due)| *due).min() else {
                return pending().await;
            };
            sleep_until(next).await;
            let polled: Vec<Polled> = self
                .made
                .due
                .iter()
                .filter(|(_, due)| *due <= next)
                .map(|(polled, _)| polled.clone())
                .collect();
            let requested = polled.into_iter().map(|polled| polled.parameter).collect();
            let results = self.read_parameters(requested).await;
            let now = clock::monotonic_now();
            for (polled, due) in self.made.due.iter_mut().filter(|(_, due)| *due <= next) {
                *due = next_read(polled, now).unwrap_or(now + LIMIT);
            }
            for (parameter, why) in &self.stale {
                tracing::warn!(parameter, why, "using the last known value");
            }
            let mut parameters = self.made.held.clone();
            for (parameter, new) in results {
                match &new {
                    ParameterState::Text(_) => drop(parameters.insert(parameter, new)),
                    ParameterState::Unreadable(why) => {
                        let parameter = parameter.name;
                        tracing::warn!(parameter, why, "using the last known value");
                    }
                    ParameterState::Unasked => {}
                }
            }
            if parameters == self.made.held {
                continue;
            }
            let texts = self.made.texts.clone();
            match texts.build_config(&|text| parameter_state(&parameters, text)) {
                Ok(config) => {
                    self.store_revision(texts, parameters, &config);
                    return Ok(config);
                }
                Err(problems) => {
                    // Report an error once, and again only when the error changes.
                    self.made.held = parameters;
                    return Err(problems);
                }
            }
        }
    }

    /// Stores the inputs of a configuration.
    fn store_revision(
        &mut self,
        texts: Rc<LoadedSources>,
        parameters: BTreeMap<SsmOutput, ParameterState>,
        config: &Config,
    ) {
        let revision = Revision::new(texts, parameters, config);
        self.before = Some(std::mem::replace(&mut self.made, revision));
        self.save_parameters();
    }

    /// Saves parameter values for a start without AWS.
    fn save_parameters(&self) {
        if let (Some(path), false) = (&self.copy, self.made.held.is_empty())
            && let Err(error) = write_parameters(path, &self.made.held)
        {
            let (path, why) = (path.display(), text::error_chain(&error));
            tracing::warn!(%path, why, "cannot save parameter values for a start without AWS");
        }
    }

    /// Reads parameter values, each with a timeout.
    async fn read_parameters(
        &mut self,
        requested: BTreeSet<SsmOutput>,
    ) -> BTreeMap<SsmOutput, ParameterState> {
        let all = join_all(requested.into_iter().map(async |parameter| {
            let response = timeout(LIMIT, (self.ask)(parameter.clone())).await;
            let response = response.unwrap_or_else(|_| {
                Err(ParameterUnavailable {
                    is_retryable: true,
                    why: format!("no response within {} s", LIMIT.as_secs()),
                })
            });
            (parameter, response)
        }))
        .await;
        let mut parameters = BTreeMap::new();
        (self.is_retryable, self.stale) = (false, Vec::new());
        for (parameter, response) in all {
            let state = match response {
                Ok(text) => ParameterState::Text(text),
                Err(unavailable_parameter) => {
                    let last = unavailable_parameter
                        .is_retryable
                        .then(|| self.last_value(&parameter))
                        .flatten();
                    self.is_retryable |= unavailable_parameter.is_retryable;
                    match last {
                        Some(last) => {
                            self.stale.push((parameter.name.clone(), unavailable_parameter.why));
                            ParameterState::Text(last)
                        }
                        None => ParameterState::Unreadable(unavailable_parameter.why),
                    }
                }
            };
            parameters.insert(parameter, state);
        }
        parameters
    }

    /// The last known value of a parameter.
    fn last_value(&self, parameter: &SsmOutput) -> Option<String> {
        if let Some(ParameterState::Text(text)) = self.made.held.get(parameter) {
            return Some(text.clone());
        }
        let saved: Value =
            serde_json::from_str(&files::read_limited(self.copy.as_ref()?).ok()?).ok()?;
        let saved = saved.as_array()?.iter().find(|saved| {
            saved["name"] == parameter.name.as_str() && saved["region"] == json!(parameter.region)
        })?;
        Some(saved["value"].as_str()?.to_owned())
    }
}

fn parameter_state(
    parameters: &BTreeMap<SsmOutput, ParameterState>,
    parameter: &SsmOutput,
) -> ParameterState {
    parameters
        .get(parameter)
        .cloned()
        .unwrap_or_else(|| ParameterState::Unreadable("it was not read".to_owned()))
}

/// When a parameter is read next.
fn next_read(polled: &Polled, now: Instant) -> Option<Instant> {
    Some(now + polled.every?.unsigned_abs())
}

/// Writes parameter values to the file.
fn write_parameters(
    path: &Path,
    parameters: &BTreeMap<SsmOutput, ParameterState>,
) -> io::Result<()> {
    let all: Vec<Value> = parameters
        .iter()
        .filter_map(|(parameter, state)| match state {
            ParameterState::Text(value) => Some(json!({
                "name": parameter.name,
                "region": parameter.region,
                "value": value,
            })),
            _ => None,
        })
        .collect();
    files::replace_file(path, &Value::Array(all).to_string())
}

#[cfg(feature = "aws")]
async fn read_parameter(parameter: SsmOutput) -> Result<String, ParameterUnavailable> {
    crate::providers::aws::ssm_parameters::read_parameter(&parameter).await
}

#[cfg(not(feature = "aws"))]
async fn read_parameter(_: SsmOutput) -> Result<String, ParameterUnavailable> {
    Err(ParameterUnavailable {
        is_retryable: false,
        why: "this build has no AWS support".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::fs;
    use std::path::Path;
    use std::sync::{Arc, Mutex, PoisonError};
    use std::time::Duration;

    use futures::FutureExt;
    use tempfile::TempDir;
    use tokio::time::timeout;

    use super::{ConfigSource, ConfigSources, ParameterUnavailable};
    use crate::config::Config;
    use crate::config::diagnostic::Diagnostic;
    use crate::host::clock;

    /// The responses in order. The last one is repeated.
    type Answers = Arc<Mutex<VecDeque<Result<String, ParameterUnavailable>>>>;

    fn region(name: &str) -> Result<String, ParameterUnavailable> {
        Ok(format!(r#"{{"clusters": {{"demo": {{"region": "{name}"}}}}}}"#))
    }

    fn unavailable_parameter(is_retryable: bool) -> Result<String, ParameterUnavailable> {
        let why = "AWS could not be reached".to_owned();
        Err(ParameterUnavailable { is_retryable, why })
    }

    fn source(folder: &Path, answers: &Answers) -> ConfigSource {
        let wanted =
            ConfigSources { paths: vec![folder.join("main.hcl")], ..ConfigSources::default() };
        let answers = answers.clone();
        let ask = move |_| {
            let mut left = answers.lock().unwrap_or_else(PoisonError::into_inner);
            let next = match left.len() {
                1 => left.front().cloned(),
                _ => left.pop_front(),
            };
            async move { next.expect("a response") }.boxed()
        };
        ConfigSource::with_reader(wanted, Some(folder), Box::new(ask))
    }

    /// A folder with a configuration whose clusters are in a parameter, its source, and the
    /// responses for the parameter.
    fn set_up(
        responses: &[Result<String, ParameterUnavailable>],
    ) -> (TempDir, ConfigSource, Answers) {
        let folder = TempDir::new().expect("a directory");
        write(folder.path(), "tags = {}");
        let answers: Answers = Arc::new(Mutex::new(responses.iter().cloned().collect()));
        let source = source(folder.path(), &answers);
        (folder, source, answers)
    }

    fn write(folder: &Path, more: &str) {
        let text = format!(
            r#"data "terraform_output" "platform" {{
  ssm_parameter = "/outputs"
  refresh       = "10m"
  mock          = {{ clusters = {{ mock = {{ region = "mock" }} }} }}
}}
cluster "fleet" {{
  for_each = data.terraform_output.platform.clusters
  name     = each.key
  region   = each.value.region
  {more}
  simulated {{}}
}}
"#
        );
        fs::write(folder.join("main.hcl"), text).expect("written");
    }

    fn region_of(read: Result<Config, Vec<Diagnostic>>) -> String {
        let config = read.expect("a configuration");
        assert_eq!(config.clusters.len(), 1);
        config.clusters[0].region.clone()
    }

    #[tokio::test(start_paused = true)]
    async fn changed_parameter_value_reloads_the_configuration() {
        let responses = [region("one"), region("one"), unavailable_parameter(true), region("two")];
        let (_folder, mut source, _) = set_up(&responses);
        assert_eq!(region_of(source.read_config().await), "one");
        let start = clock::monotonic_now();
        assert_eq!(region_of(source.wait_for_change().await), "two");
        assert_eq!(start.elapsed().as_secs(), 1800);
        // The parameter does not change from here on.
        assert!(timeout(Duration::from_hours(3), source.wait_for_change()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn half_written_files_are_ignored_until_the_next_reload() {
        let (folder, mut source, answers) = set_up(&[region("one"), region("two")]);
        assert_eq!(region_of(source.read_config().await), "one");
        write(folder.path(), "half =");
        assert_eq!(region_of(source.wait_for_change().await), "two");
        assert!(source.read_config().await.is_err());
        assert!(!source.is_retryable());
        answers.lock().unwrap_or_else(PoisonError::into_inner).push_back(region("three"));
        assert_eq!(region_of(source.wait_for_change().await), "three");
    }

    #[tokio::test(start_paused = true)]
    async fn rejected_configuration_is_reported_as_a_change_again() {
        let (folder, mut source, _) = set_up(&[region("one"), region("two")]);
        assert_eq!(region_of(source.read_config().await), "one");
        for _ in 0..3 {
            assert_eq!(region_of(source.wait_for_change().await), "two");
            source.on_rejected();
        }
        // A refused reload keeps the current files.
        write(folder.path(), "tags = { More = \"files\" }");
        let config = source.read_config().await.expect("a configuration");
        assert_eq!(config.clusters[0].tags.len(), 1);
        source.on_rejected();
        let config = source.wait_for_change().await.expect("a configuration");
        assert_eq!(config.clusters[0].tags.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn invalid_parameter_value_is_reported_once() {
        let odd = Ok(r#"{"clusters": {"demo": {}}}"#.to_owned());
        let responses = [region("one"), odd.clone(), odd.clone(), odd, region("one")];
        let (_folder, mut source, _) = set_up(&responses);
        assert_eq!(region_of(source.read_config().await), "one");
        assert!(source.wait_for_change().await.is_err());
        let start = clock::monotonic_now();
        assert_eq!(region_of(source.wait_for_change().await), "one");
        assert_eq!(start.elapsed().as_secs(), 1800);
    }

    #[tokio::test(start_paused = true)]
    async fn start_without_a_response_uses_the_last_known_value() {
        let (folder, mut first, answers) = set_up(&[unavailable_parameter(true)]);
        assert!(first.read_config().await.is_err());
        assert!(first.is_retryable());
        let set =
            |response| *answers.lock().unwrap_or_else(PoisonError::into_inner) = [response].into();
        set(region("one"));
        assert_eq!(region_of(first.read_config().await), "one");
        set(unavailable_parameter(true));
        let mut again = source(folder.path(), &answers);
        let config = again.read_config().await.expect("a configuration");
        assert_eq!(config.clusters[0].region, "one");
        let details = config.warnings.iter().map(|it| it.detail.as_str());
        assert!(details.into_iter().any(|detail| detail.contains("Using the last known value")));
        // With changed files, an old response may be wrong, and a later start may succeed.
        write(folder.path(), "tags = { New = each.value.new }");
        let mut again = source(folder.path(), &answers);
        assert!(again.read_config().await.is_err());
        assert!(again.is_retryable());
        write(folder.path(), "tags = {}");
        // A deleted parameter has no last known value.
        set(unavailable_parameter(false));
        let mut again = source(folder.path(), &answers);
        assert!(again.read_config().await.is_err());
        // Terraform may create the parameter later.
        assert!(again.is_retryable());
        // An error in the files does not depend on the parameter.
        write(folder.path(), "nonsense = 5");
        set(region("one"));
        let mut again = self::source(folder.path(), &answers);
        assert!(again.read_config().await.is_err());
        assert!(!again.is_retryable());
    }
}
