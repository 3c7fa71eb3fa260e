//! Free IP addresses of subnets: the last count that EC2 reported, minus the addresses that
//! launches have reserved since then.
//!
//! Source: spec/aws.md §5.7 and §10, 73 and 76.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::model::id::Zone;
use crate::model::node_class::resolved::Subnet;
use crate::state::unavailable_offerings::HOLD;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct AddressCount {
    /// Free addresses in the last count.
    counted: u32,
    /// Addresses that launches have reserved since the last count.
    taken: u32,
    /// Number of counts so far. Addresses that are returned after a newer count are already
    /// included in it.
    round: u64,
    /// Until when the subnet is not used.
    held: Option<Timestamp>,
}

/// Reserved addresses of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservedAddresses {
    addresses: Vec<(String, u32, u64)>,
}

/// Subnet capacity of one account and region.
#[derive(Clone, Debug, Default)]
pub struct Subnets {
    known: BTreeMap<String, AddressCount>,
}

impl Subnets {
    /// Sets new counts of EC2, which include all launches up to now.
    pub fn apply_counts(&mut self, subnets: &[Subnet]) {
        for subnet in subnets {
            let count = self.known.entry(subnet.id.clone()).or_default();
            count.counted = subnet.free;
            count.taken = 0;
            count.round += 1;
        }
    }

    /// The subnet for launches in a zone: the one with the most free addresses, or the first of
    /// several equal ones. `None` if there is no subnet or none had a free address lately.
    pub fn choose_subnet<'s>(
        &self,
        subnets: &'s [Subnet],
        zone: &Zone,
        now: Timestamp,
    ) -> Option<&'s Subnet> {
        // `max_by_key` would return the last of several equal subnets.
        let open = subnets
            .iter()
            .filter(|subnet| {
                let known = self.known.get(&subnet.id);
                let held = known.and_then(|count| count.held);
                subnet.zone == *zone && held.is_none_or(|until| until <= now)
            })
            .rev();
        open.max_by_key(|subnet| {
            let known = self.known.get(&subnet.id);
            known.map_or(subnet.free, |count| count.counted.saturating_sub(count.taken))
        })
    }

    /// Reserves addresses of a subnet until the outcome of a request is known.
    pub fn reserve_addresses(
        &mut self,
        subnet: &Subnet,
        addresses: u32,
        into: &mut ReservedAddresses,
    ) {
        let count = self
            .known
            .entry(subnet.id.clone())
            .or_insert(AddressCount { counted: subnet.free, ..AddressCount::default() });
        count.taken = count.taken.saturating_add(addresses);
        into.addresses.push((subnet.id.clone(), addresses, count.round));
    }

    /// Completes a request: unused addresses are free again, unless a newer count of EC2 already
    /// includes them.
    pub fn release_addresses(&mut self, taken: &ReservedAddresses, used: Option<&str>) {
        for (id, addresses, round) in &taken.addresses {
            if let Some(count) = self.known.get_mut(id)
                && count.round == *round
                && used != Some(id.as_str())
            {
                count.taken = count.taken.saturating_sub(*addresses);
            }
        }
    }

    /// EC2 reports that a subnet has no free address.
    pub fn mark_exhausted(&mut self, subnet: &str, now: Timestamp) {
        let count = self.known.entry(subnet.to_owned()).or_default();
        (count.counted, count.taken) = (0, 0);
        count.held = now.checked_add(HOLD).ok();
    }
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::{ReservedAddresses, Subnets};
    use crate::model::node_class::resolved::Subnet;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn subnet(id: &str, zone: &str, free: u32) -> Subnet {
        Subnet { id: id.to_owned(), zone: zone.into(), zone_id: String::new(), free }
    }

    fn chosen(subnets: &Subnets, all: &[Subnet], now: Timestamp) -> String {
        let subnet = subnets.choose_subnet(all, &"a".into(), now);
        subnet.map_or("none".to_owned(), |subnet| subnet.id.clone())
    }

    #[test]
    fn subnet_with_most_unreserved_addresses_is_chosen() {
        let all = [subnet("s1", "a", 100), subnet("s2", "a", 100), subnet("s3", "b", 900)];
        let mut subnets = Subnets::default();
        subnets.apply_counts(&all);
        assert_eq!(chosen(&subnets, &all, NOW), "s1", "the first of equals");
        let mut taken = ReservedAddresses::default();
        subnets.reserve_addresses(&all[0], 30, &mut taken);
        assert_eq!(chosen(&subnets, &all, NOW), "s2");
        let mut other = ReservedAddresses::default();
        subnets.reserve_addresses(&all[1], 50, &mut other);
        assert_eq!(chosen(&subnets, &all, NOW), "s1", "70 left against 50");
        // A failed call returns its addresses; a successful one keeps them.
        subnets.release_addresses(&other, None);
        assert_eq!(chosen(&subnets, &all, NOW), "s2");
        subnets.release_addresses(&taken, Some("s1"));
        assert_eq!(chosen(&subnets, &all, NOW), "s2");
    }

    #[test]
    fn release_ignores_addresses_reserved_before_the_last_count() {
        let all = [subnet("s1", "a", 60), subnet("s2", "a", 50)];
        let mut subnets = Subnets::default();
        subnets.apply_counts(&all);
        let (mut first, mut second) = (ReservedAddresses::default(), ReservedAddresses::default());
        subnets.reserve_addresses(&all[0], 30, &mut first);
        subnets.apply_counts(&all);
        subnets.reserve_addresses(&all[0], 20, &mut second);
        subnets.release_addresses(&first, None);
        assert_eq!(chosen(&subnets, &all, NOW), "s2", "40 are left of s1");
        subnets.release_addresses(&second, None);
        assert_eq!(chosen(&subnets, &all, NOW), "s1");
    }

    #[test]
    fn exhausted_subnet_is_avoided_for_three_minutes() {
        let all = [subnet("s1", "a", 60), subnet("s2", "a", 50)];
        let mut subnets = Subnets::default();
        subnets.mark_exhausted("s1", NOW);
        assert_eq!(chosen(&subnets, &all, NOW), "s2");
        assert_eq!(chosen(&subnets, &all[..1], NOW), "none", "the zone has no other subnet");
        let later = |seconds| NOW + SignedDuration::from_secs(seconds);
        assert_eq!(chosen(&subnets, &all[..1], later(179)), "none");
        assert_eq!(chosen(&subnets, &all[..1], later(180)), "s1");
        assert_eq!(
            chosen(&subnets, &all, later(180)),
            "s2",
            "its addresses are not counted again yet"
        );
        subnets.apply_counts(&all);
        assert_eq!(chosen(&subnets, &all, later(180)), "s1");
    }
}
