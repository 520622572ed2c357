"""The analytic cost model: time and memory of a scheme from data sheets, without a device."""
