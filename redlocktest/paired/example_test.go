package paired_test

import (
	"fmt"

	"github.com/redlock-go/redlock/redlocktest/paired"
)

func Example() {
	fmt.Println(paired.RatioOf([]float64{1.1, 1.2, 1.3, 0.9, 1.2}))
	// Output: 1.200 (0.900 to 1.300)
}
