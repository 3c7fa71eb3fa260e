//! Verifies that each check can fail: the simulated provider with one defect at a time.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};

use super::checks::check;
use super::providers::{nowhere, simulated, subject};
use crate::engine::command::Command;
use crate::model::claim::{TAG_CLUSTER, TAG_INSTALLATION};
use crate::model::id::{ClaimId, InstanceId};
use crate::model::instance::InstanceState;
use crate::provider::{CommandResult, FailureKind, Launch, RefusalKind};
use crate::providers::interface::Provider;
use crate::providers::simulated::{CloudHandle, InProcess};

/// A defect of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    /// Every launch creates an instance.
    ForgetsTokens,
    /// The provider compares only the token of a repeated launch.
    IgnoresParameters,
    /// A claim whose instance has terminated gets a new instance.
    ForgetsTerminated,
    /// The provider launches instances with fewer tags than requested.
    DropsTags,
    /// Listings truncate a tag.
    TruncatesTags,
    ListsNothing,
    /// A listing contains the instances of all installations and clusters.
    ListsOthers,
    TerminatesOthers,
    /// Terminating a terminated instance terminates a different instance.
    TerminatesAnother,
    /// Terminating a terminated instance fails.
    FailsTheSecondTermination,
    /// An instance that never existed counts as terminated.
    TerminatesUnknown,
    /// The provider reports a termination without performing it.
    TerminatesNothing,
    RefusesWithoutKind,
    /// The provider reports every refused offering as out of stock, even offerings that do not
    /// exist.
    ConfusesKinds,
    /// The provider tries only the first offering.
    TriesOnlyOne,
    DoesAnything,
}

const ALL: [Defect; 16] = [
    Defect::ForgetsTokens,
    Defect::IgnoresParameters,
    Defect::ForgetsTerminated,
    Defect::DropsTags,
    Defect::TruncatesTags,
    Defect::ListsNothing,
    Defect::ListsOthers,
    Defect::TerminatesOthers,
    Defect::TerminatesAnother,
    Defect::FailsTheSecondTermination,
    Defect::TerminatesUnknown,
    Defect::TerminatesNothing,
    Defect::RefusesWithoutKind,
    Defect::ConfusesKinds,
    Defect::TriesOnlyOne,
    Defect::DoesAnything,
];

/// The operations so far.
#[derive(Default)]
struct Done {
    calls: u32,
    launched: BTreeMap<ClaimId, Launch>,
    instances: BTreeMap<ClaimId, InstanceId>,
    ended: Vec<InstanceId>,
}

struct FaultyProvider {
    defect: Defect,
    inner: InProcess,
    cloud: CloudHandle,
    done: Arc<Mutex<Done>>,
}

impl FaultyProvider {
    fn done(&self) -> std::sync::MutexGuard<'_, Done> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn launch(&self, mut launch: Launch) -> CommandResult {
        let claim = launch.claim.id.clone();
        {
            let mut done = self.done();
            done.calls += 1;
            let known = done.instances.get(&claim);
            let is_relaunch = match self.defect {
                Defect::ForgetsTokens => true,
                Defect::ForgetsTerminated => known.is_some_and(|id| done.ended.contains(id)),
                _ => false,
            };
            if is_relaunch {
                launch.claim.id = ClaimId(format!("{claim}-{}", done.calls));
            }
            if self.defect == Defect::IgnoresParameters {
                let first = done.launched.entry(claim.clone()).or_insert(launch);
                launch = first.clone();
            }
        }
        if self.defect == Defect::DropsTags {
            launch.tags.remove("empty");
        }
        if self.defect == Defect::TriesOnlyOne {
            launch.offerings.truncate(1);
        }
        let answer = self.inner.execute(Command::Launch(Box::new(launch))).await;
        match answer {
            CommandResult::Launched(instance) => {
                self.done().instances.insert(claim, instance.id.clone());
                CommandResult::Launched(instance)
            }
            CommandResult::LaunchRefused(_) if self.defect == Defect::RefusesWithoutKind => {
                unknown()
            }
            CommandResult::LaunchRefused(mut refusals) if self.defect == Defect::ConfusesKinds => {
                for refusal in &mut refusals {
                    refusal.kind = RefusalKind::InsufficientCapacity;
                }
                CommandResult::LaunchRefused(refusals)
            }
            other => other,
        }
    }

    async fn terminate(&self, claim: ClaimId, instance: InstanceId) -> CommandResult {
        let again = self.done().ended.contains(&instance);
        let all = self.cloud.list(None).await.expect("a listing");
        let found = all.iter().find(|it| it.id == instance);
        let owner = found.and_then(|instance| {
            let installation = instance.tags.get(TAG_INSTALLATION)?.clone();
            Some((installation, instance.tags.get(TAG_CLUSTER)?.clone()))
        });
        let another = all.iter().find(|it| it.state.is_live());
        let (target, of) = match self.defect {
            Defect::FailsTheSecondTermination if again => return unknown(),
            Defect::TerminatesUnknown if found.is_none() => {
                return CommandResult::Terminating(InstanceState::Terminated);
            }
            Defect::TerminatesNothing => {
                return CommandResult::Terminating(InstanceState::ShuttingDown);
            }
            Defect::TerminatesAnother if again => (another.map(|it| it.id.clone()), None),
            Defect::TerminatesOthers => (None, owner),
            _ => (None, None),
        };
        self.done().ended.push(instance.clone());
        if let Some((installation, cluster)) = of {
            return self.cloud.terminate(instance, (installation, cluster.into())).await;
        }
        let instance = target.unwrap_or(instance);
        self.inner.execute(Command::Terminate { claim, instance }).await
    }

    async fn list(&self) -> CommandResult {
        let all = match self.defect {
            Defect::ListsNothing => return CommandResult::Instances(Vec::new()),
            Defect::ListsOthers => self.cloud.list(None).await.map(CommandResult::Instances),
            _ => Some(self.inner.execute(Command::ListInstances).await),
        };
        match all.expect("a listing") {
            CommandResult::Instances(mut all) if self.defect == Defect::TruncatesTags => {
                for value in all
                    .iter_mut()
                    .flat_map(|instance| Arc::make_mut(&mut instance.tags).values_mut())
                {
                    *value = value.chars().take(255).collect();
                }
                CommandResult::Instances(all)
            }
            other => other,
        }
    }
}

fn unknown() -> CommandResult {
    CommandResult::Failed { kind: FailureKind::Unknown, text: "faulty".to_owned() }
}

impl Provider for FaultyProvider {
    fn execute(&self, command: Command) -> BoxFuture<'_, CommandResult> {
        async move {
            match command {
                Command::Launch(launch) => self.launch(*launch).await,
                Command::Terminate { claim, instance } => self.terminate(claim, instance).await,
                Command::ListInstances => self.list().await,
                _ if self.defect == Defect::DoesAnything => CommandResult::Done,
                other => self.inner.execute(other).await,
            }
        }
        .boxed()
    }
}

#[tokio::test]
async fn each_faulty_provider_fails_a_conformance_check() {
    let checks = ALL.map(|defect| async move {
        let (cloud, done) = (simulated(), Arc::default());
        let open = |installation: &str, cluster: &str| -> Arc<dyn Provider> {
            let inner = InProcess {
                cloud: cloud.clone(),
                installation: installation.to_owned(),
                cluster: cluster.into(),
                home: nowhere(),
            };
            let (cloud, done) = (cloud.clone(), Arc::clone(&done));
            Arc::new(FaultyProvider { defect, inner, cloud, done })
        };
        let subject = subject(&open);
        let found = AssertUnwindSafe(check(&subject)).catch_unwind().await;
        assert!(found.is_err(), "{defect:?} passes every check");
    });
    join_all(checks).await;
}
