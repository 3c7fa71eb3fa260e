//! A daemon started with a different region or a role of a different account, whose listings lack
//! the running instances. Nothing is launched or terminated, and the log has the reason.

use std::fs;
use std::time::Duration;

use super::Ec2;
use crate::binary::outrigger;
use crate::plane::fixture::{self, Process, clock, patience};

/// The time within which the log must name the fault.
const NAMED: Duration = Duration::from_secs(30);

/// A role of an account without resources.
const ELSEWHERE: &str = "arn:aws:iam::210987654321:role/outrigger";

impl Ec2 {
    /// Restarts the daemon with this configuration.
    fn restart(&mut self, text: &str) {
        self.daemon.kill();
        fs::write(self.dir.path().join("outrigger.hcl"), text).expect("written");
        let mut command = self.aws.command(outrigger());
        command.arg("run").arg("--config").arg(self.dir.path());
        self.daemon = Process::spawn(command, &self.dir.path().join("daemon.log"));
    }

    /// Waits until this many lines of the log contain the text.
    async fn until_told(&self, what: &str, times: usize, limit: Duration) {
        let start = clock();
        loop {
            let log = fs::read_to_string(self.dir.path().join("daemon.log")).unwrap_or_default();
            if log.lines().filter(|line| line.contains(what)).count() >= times {
                println!("{what:?} after {:.1} s", start.elapsed().as_secs_f64());
                return;
            }
            assert!(
                start.elapsed() < patience(limit.as_secs()),
                "{what:?} not within {limit:?}:\n{log}"
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Returns the number of launches and terminations that the daemon requested.
    fn changes(&self) -> (usize, usize) {
        let count = |call| self.calls_of(call).len();
        (count("ec2:CreateFleet"), count("ec2:TerminateInstances"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_region_or_role_launches_and_terminates_nothing() {
    let test = "aws::cases::identity::wrong_region_or_role_launches_and_terminates_nothing";
    let Some(mut ec2) = Ec2::start(test, "").await else {
        return;
    };
    fixture::deploy(&ec2.api, "web", 6, "1500m", "1Gi").await;
    ec2.until(180, "all pods are bound", |world, _| world.bound() == 6).await;
    let right = fs::read_to_string(ec2.dir.path().join("outrigger.hcl")).expect("written");
    let region = format!("region = \"{}\"", ec2.aws.fact("/region"));
    assert!(right.contains(&region), "{right}");
    tokio::time::sleep(Duration::from_secs(15)).await;
    let before = (ec2.live().len(), ec2.changes());
    // One more pod is pending, and the daemon must not launch a node for it.
    let elsewhere = right.replace(&region, "region = \"eu-west-1\"");
    let of_others = right.replace(&region, &format!("{region}\n  role_arn = \"{ELSEWHERE}\""));
    for (times, wrong) in [(1, elsewhere), (2, of_others)] {
        ec2.restart(&wrong);
        fixture::deploy(&ec2.api, &format!("more{times}"), 1, "1500m", "1Gi").await;
        let named = "code=\"other_instances\"";
        ec2.until_told(named, times, NAMED).await;
        tokio::time::sleep(Duration::from_secs(15)).await;
        assert_eq!((ec2.live().len(), ec2.changes()), before, "with {wrong}");
    }
    ec2.restart(&right);
    ec2.until(180, "all pods are bound", |world, _| world.bound() == 8).await;
}
